"""May the fused call use every kernel? `with sdpa_kernel(SDPBackend.FLASH_ATTENTION)` raises an error for a mask.

Products and a softmax run in any case. Only what leaves torch's kernel for everything, the mathematical one, allowed
lets each attention run. Knows names of torch and syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_CHOOSE = frozenset({"sdpa_kernel", "sdp_kernel"})
_FORBID = frozenset({"enable_math_sdp", "_set_sdp_use_math"})


def kernels_are_not_restricted(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing in the given files forbids the kernel of attention that takes everything."""
    if claim.site.rule.replacement.operation != "attention":
        return
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.choosing_kernels(own) if files is not None else ())):
        found = scope.index(_restricts)
        if found is not None:
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            text = ast.unparse(found).splitlines()[0]
            yield Missing(
                f"assumes that a kernel which `{text}` in {where}line {found.lineno} allows takes the operands"
            )
            return


def _restricts(tree: ast.Module) -> ast.Call | None:
    return next((n for n in walk(tree) if isinstance(n, ast.Call) and _is_restriction(n)), None)


def _is_restriction(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [*call.args, *(k.value for k in call.keywords)]
    if name in _FORBID:
        return not (given and isinstance(given[0], ast.Constant) and given[0].value is True)
    if name not in _CHOOSE:
        return False
    if any(isinstance(n, ast.Attribute) and n.attr == "MATH" for g in given for n in walk(g)):
        return False
    math = [k.value for k in call.keywords if k.arg == "enable_math"]
    return name == "sdpa_kernel" or any(not (isinstance(m, ast.Constant) and m.value is True) for m in math)
