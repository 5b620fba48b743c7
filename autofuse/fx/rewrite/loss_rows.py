"""Guards that a loss has one target for each row of logits.

`logsumexp(z, 1) - z.gather(1, y[:, None])[:, 0]` repeats a single target for all rows, and raises an error for other
numbers of targets. torch's losses need one target for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.reasons import writing
from autofuse.reasons.reason import because


def guard_one_target_each(captured: CapturedTrace, built: Mapping[str, Any]) -> None:
    """Guard that the number of targets is the number of rows.

    Raises:
        CannotBuild: the sizes are unknown, or differ in the example.
    """
    scores, target = built.get("logits", built.get("x")), built.get("target")
    rows, targets = _sizes(captured, scores), _sizes(captured, target)
    dim = built.get("dim", 1) if "logits" in built else -1
    if scores is None or target is None or rows is None or targets is None or type(dim) is not int:
        raise CannotBuild(because(writing.ROWS_UNKNOWN))
    at = dim if len(rows) > 1 else 0
    shapes = scores.meta["v"].shape, target.meta["v"].shape
    classes = shapes[0][at]
    if shapes[0].numel() != shapes[1].numel() * classes:
        raise CannotBuild(because(writing.ROWS_UNKNOWN))
    rows = [size for i, size in enumerate(rows) if i != at % len(rows)]
    # Equal expressions need no guard.
    if rows != targets:
        captured.trace.guards.add(f"{_product(rows)} == {_product(targets)}")


def _sizes(captured: CapturedTrace, node: Any) -> list[Any] | None:
    """The size of each dimension as a guard writes it; None if one is unknown."""
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("v"), Tensor):
        return None
    sizes = list(captured.trace.sizes.get(node, ()))
    return sizes if len(sizes) == node.meta["v"].ndim and all(s is not None for s in sizes) else None


def _product(sizes: Sequence[Any]) -> str:
    return " * ".join(f"({s})" for s in sizes) or "1"
