"""Finds out which derivatives the project takes. The fused operators of torch do not have all of them.

- torch's fused attention and the operators of autofuse can be differentiated once, in reverse mode.
- torch's layer norm has correct first and second derivatives. Its third derivative is wrong, and so is the derivative
  of a derivative in forward mode.
- torch's gated linear unit cannot be differentiated again after forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autofuse.rule import Fails
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.derivative_calls import Derivative, find_derivatives


def check_derivatives(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if a file that uses the edit takes a derivative that the fused operator lacks."""
    owner, _, function = claim.edit.becomes.rpartition(".")
    if function == "scaled_dot_product_attention" or owner.endswith("ops"):
        yield from _find_first(
            claim, _any_derivative, "does not differentiate the result twice, which the fused call cannot"
        )
    elif function == "layer_norm":
        yield from _find_first(
            claim, _third_derivative, "takes no third and no forward-mode derivative, which torch's gets wrong"
        )
    elif function == "glu":
        yield from _find_first(
            claim, _forward_derivative, "does not differentiate the result in forward mode, which torch's glu cannot"
        )


def _find_first(
    claim: Claim, choose: Callable[[tuple[Derivative, ...]], Derivative | None], consequence: str
) -> Iterator[Missing | Fails]:
    own = claim.defined.scope
    others = claim.files.files_differentiating_twice(own) if claim.files is not None else ()
    for scope in (own, *others):
        derivative = choose(scope.index(find_derivatives))
        if derivative is not None:
            where = _location(scope, own)
            yield Missing(f"assumes that `{derivative.text}` in {where}line {derivative.node.lineno} {consequence}")
            return


def _location(scope: FileScope, own: FileScope) -> str:
    return "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "


def _any_derivative(derivatives: tuple[Derivative, ...]) -> Derivative | None:
    return derivatives[0] if derivatives else None


def _forward_derivative(derivatives: tuple[Derivative, ...]) -> Derivative | None:
    return next((derivative for derivative in derivatives if derivative.forward), None)


def _third_derivative(derivatives: tuple[Derivative, ...]) -> Derivative | None:
    """The place where two derivatives are complete, since training takes a third; or a derivative in forward mode."""
    orders = 0
    for derivative in derivatives:
        orders += 2 if derivative.forward else derivative.orders
        if orders > 1:
            return derivative
    return None
