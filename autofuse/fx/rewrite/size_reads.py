"""Sizes that are asked of values that a fused call takes away, read off something that stays.

Knows where the trace says that a size comes from (trace/size_sources.py) and how a result is turned; knows no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.fx.rewrite.size_nodes import size_node
from autofuse.fx.trace.operation_names import call_text, operation_of
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because


def sizes_elsewhere(
    captured: CapturedTrace, site: Site, results: Sequence[fx.Node], made: Sequence[fx.Node]
) -> dict[fx.Node, Any]:
    """For each read of a size of what goes, the number or the node that gives the same.

    `made` stand for `results`. Raises CannotBuild where a size could only be had by computing what was to go.
    """
    return {
        node: _elsewhere(captured, node, results, made)
        for value in site.removed.metadata
        if (node := captured.nodes.get(value)) is not None and _is_size(node) and node.users
    }


def _is_size(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "size" and len(node.args) == 2


def _elsewhere(captured: CapturedTrace, node: fx.Node, results: Sequence[fx.Node], made: Sequence[fx.Node]) -> Any:
    tensor, dim = node.args
    assert isinstance(tensor, fx.Node) and isinstance(dim, int)
    sizes = captured.trace.sizes.get(tensor, ())
    if dim < len(sizes) and (size := sizes[dim]) is not None:
        with captured.trace.graph.inserting_before(node):
            return size_node(captured, size, node.meta.get("v"))
    for old, new in zip(results, made, strict=True):
        place = _place_of(tensor, dim, old)
        if place is not None and (early := _numbers_before(new, node)) is not None:
            for number in reversed(early):
                new.append(number)
            with captured.trace.graph.inserting_after(new):
                asked = captured.trace.graph.call_method("size", (new, place))
            asked.meta["v"] = node.meta.get("v")
            return asked
    raise CannotBuild(because(writing.SIZE_OF_REMOVED, name=call_text(tensor)))


def _numbers_before(new: fx.Node, size: fx.Node) -> list[fx.Node] | None:
    """What is computed from `size` before `new` is, in order; None where that is more than numbers, or read there."""
    found: dict[fx.Node, None] = {}
    todo = [size]
    while todo:
        for user in todo.pop().users:
            if user < new and not isinstance(user.meta.get("v"), int):
                return None
            if user < new:
                found[user] = None
                todo.append(user)
    return sorted(found)


def _place_of(tensor: fx.Node, dim: int, result: fx.Node) -> int | None:
    """Which dimension of `result` is dimension `dim` of `tensor`, if one is the other turned."""
    turns: list[fx.Node] = []
    while result is not tensor:
        operation = operation_of(result)
        if operation is None or operation.name not in ("transpose", "permute", "contiguous"):
            return None
        turns.append(result)
        result = result.all_input_nodes[0]
    value = tensor.meta.get("v")
    if not isinstance(value, Tensor):
        return None
    order = list(range(value.dim()))
    for turn in reversed(turns):
        order = _turned(order, turn)
    return order.index(dim)


def _turned(order: list[int], turn: fx.Node) -> list[int]:
    """`order` as the operation of `turn` leaves it."""
    given = [*turn.args[1:], *turn.kwargs.values()]
    dims: list[Any] = [d for g in given for d in (g if isinstance(g, (tuple, list)) else [g])]
    operation = operation_of(turn)
    if operation is None or operation.name == "contiguous":
        return order
    if operation.name == "permute":
        return [order[d] for d in dims]
    order = list(order)
    order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return order
