"""Checks that no code restricts the kernels of scaled_dot_product_attention.

`with sdpa_kernel(SDPBackend.FLASH_ATTENTION)` makes the fused call raise an error if it has a mask. The original code,
two matrix products and a softmax, runs in any case. Only the math backend takes all operands, so a restriction that
leaves it enabled is harmless.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_KERNEL_CONTEXTS = frozenset({"sdpa_kernel", "sdp_kernel"})
_MATH_SWITCHES = frozenset({"enable_math_sdp", "_set_sdp_use_math"})


def kernels_are_not_restricted(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports code, in this file or in one that imports it, that disables the math backend of attention."""
    if claim.site.rule.replacement.operation != "attention":
        return
    own_scope, files = claim.defined.scope, claim.files
    for scope in (own_scope, *(files.files_choosing_kernels(own_scope) if files is not None else ())):
        restriction = scope.index(_find_restriction)
        if restriction is not None:
            where = "" if scope.tree is own_scope.tree or scope.file is None else f"{scope.file.name}, "
            text = ast.unparse(restriction).splitlines()[0]
            yield Missing(
                f"assumes that `{text}` in {where}line {restriction.lineno} allows a kernel that takes these operands"
            )
            return


def _find_restriction(tree: ast.Module) -> ast.Call | None:
    return next((n for n in walk(tree) if isinstance(n, ast.Call) and _is_restriction(n)), None)


def _is_restriction(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if name in _MATH_SWITCHES:
        return not (arguments and isinstance(arguments[0], ast.Constant) and arguments[0].value is True)
    if name not in _KERNEL_CONTEXTS:
        return False
    if any(isinstance(n, ast.Attribute) and n.attr == "MATH" for a in arguments for n in walk(a)):
        return False
    math_settings = [k.value for k in call.keywords if k.arg == "enable_math"]
    return name == "sdpa_kernel" or any(
        not (isinstance(setting, ast.Constant) and setting.value is True) for setting in math_settings
    )
