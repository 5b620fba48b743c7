"""Does the file differentiate twice, or forward? torch's fused attention, and the operations of autofuse, do not.

`torch.autograd.grad(..., create_graph=True)`, Hessians, Jacobians in forward mode. Knows the names of torch that do so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_TWICE = frozenset("hessian hvp vhp jvp jacfwd linearize gradgradcheck forward_ad make_dual dual_level".split())


def differentiates_once(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing in the file asks for the derivative of a derivative of what a fused operation computes."""
    owner, _, function = claim.edit.becomes.rpartition(".")
    if function != "scaled_dot_product_attention" and not owner.endswith("ops"):
        return
    found = claim.defined.scope.index(_first_second_derivative)
    if found is not None:
        text = ast.unparse(found).splitlines()[0]
        told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        yield Missing(f"assumes that `{told}` in line {found.lineno} does not differentiate it, which it can only once")


_LONGEST = 60  # characters of the code that a message repeats


def _first_second_derivative(tree: ast.Module) -> ast.expr | None:
    found = [n for n in walk(tree) if isinstance(n, ast.expr) and _is_second_derivative(n)]
    return min(found, key=lambda n: n.lineno, default=None)


def _is_second_derivative(n: ast.expr) -> bool:
    match n:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _TWICE:
            return True
        case ast.Call(keywords=keywords):
            return any(k.arg == "create_graph" and not _is_false(k.value) for k in keywords)
    return False


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
