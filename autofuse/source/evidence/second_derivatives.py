"""Which derivatives does the project take? torch's fused operations do not have them all.

torch's fused attention, and the operations of autofuse, have one derivative, backward. torch's layer norm has two: the
third is wrong, and so is the derivative of one in forward mode. torch's gated linear unit cannot be differentiated
again after a derivative in forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autofuse.rule import Fails
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.taken_derivatives import Derivative, derivatives


def differentiates_once(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing in the files that reach the edit takes a derivative that the fused operation does not have."""
    owner, _, function = claim.edit.becomes.rpartition(".")
    if function == "scaled_dot_product_attention" or owner.endswith("ops"):
        yield from _first(claim, _any, "does not differentiate it, which it can only once")
    elif function == "layer_norm":
        yield from _first(claim, _thrice, "takes no third derivative of it, and none forward, which torch's gets wrong")
    elif function == "glu":
        yield from _first(claim, _forward, "does not differentiate it, which torch's does not in forward mode")


def _first(
    claim: Claim, chosen: Callable[[tuple[Derivative, ...]], Derivative | None], told: str
) -> Iterator[Missing | Fails]:
    own = claim.defined.scope
    others = claim.files.differentiating(own) if claim.files is not None else ()
    for scope in (own, *others):
        found = chosen(scope.index(derivatives))
        if found is not None:
            where = _where(scope, own)
            yield Missing(f"assumes that `{found.text}` in {where}line {found.node.lineno} {told}")
            return


def _where(scope: FileScope, own: FileScope) -> str:
    return "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "


def _any(found: tuple[Derivative, ...]) -> Derivative | None:
    return found[0] if found else None


def _forward(found: tuple[Derivative, ...]) -> Derivative | None:
    return next((d for d in found if d.forward), None)


def _thrice(found: tuple[Derivative, ...]) -> Derivative | None:
    """The place that completes two derivatives, of which the training takes a third; or one in forward mode."""
    orders = 0
    for d in found:
        orders += 2 if d.forward else d.orders
        if orders > 1:
            return d
    return None
