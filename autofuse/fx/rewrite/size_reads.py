"""Replaces reads of sizes of tensors that a fused call removes. The sizes are read from values that stay."""

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


def size_replacements(
    captured: CapturedTrace, site: Site, results: Sequence[fx.Node], new_results: Sequence[fx.Node]
) -> dict[fx.Node, Any]:
    """For each read of a removed tensor's size, the number or the node that replaces it.

    Args:
        captured: The trace. trace/size_sources.py records where each size comes from.
        site: The match, with the values that are removed.
        results: The replaced results.
        new_results: The new nodes for `results`, in the same order.

    Raises:
        CannotBuild: only the removed code can compute the size.
    """
    return {
        node: _size_replacement(captured, node, results, new_results)
        for value in site.removed.metadata
        if (node := captured.nodes.get(value)) is not None and _is_size(node) and node.users
    }


def _is_size(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "size" and len(node.args) == 2


def _size_replacement(
    captured: CapturedTrace, node: fx.Node, results: Sequence[fx.Node], new_results: Sequence[fx.Node]
) -> Any:
    tensor, dim = node.args
    assert isinstance(tensor, fx.Node) and isinstance(dim, int)
    sizes = captured.trace.sizes.get(tensor, ())
    if dim < len(sizes) and (size := sizes[dim]) is not None:
        with captured.trace.graph.inserting_before(node):
            return size_node(captured, size, node.meta.get("v"))
    # The size is read from a new result. Numbers that depend on it move behind that result.
    for old, new in zip(results, new_results, strict=True):
        place = _matching_dim(tensor, dim, old)
        if place is not None and (numbers := _numbers_to_move(new, node)) is not None:
            for number in reversed(numbers):  # each is inserted directly after `new`, so the last one comes first
                new.append(number)
            with captured.trace.graph.inserting_after(new):
                read = captured.trace.graph.call_method("size", (new, place))
            read.meta["v"] = node.meta.get("v")
            return read
    raise CannotBuild(because(writing.SIZE_OF_REMOVED, name=call_text(tensor)))


def _numbers_to_move(new: fx.Node, size: fx.Node) -> list[fx.Node] | None:
    """The nodes before `new` that depend on `size`, in order; None if one of them is not an integer."""
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


def _matching_dim(tensor: fx.Node, dim: int, result: fx.Node) -> int | None:
    """The dimension of `result` that is dimension `dim` of `tensor`; None if `result` is no reordering of `tensor`."""
    reorderings: list[fx.Node] = []
    while result is not tensor:
        operation = operation_of(result)
        if operation is None or operation.name not in ("transpose", "permute", "contiguous"):
            return None
        reorderings.append(result)
        result = result.all_input_nodes[0]
    value = tensor.meta.get("v")
    if not isinstance(value, Tensor):
        return None
    order = list(range(value.dim()))
    for reordering in reversed(reorderings):
        order = _reorder(order, reordering)
    return order.index(dim)


def _reorder(order: list[int], reordering: fx.Node) -> list[int]:
    """`order` after the reordering."""
    arguments = [*reordering.args[1:], *reordering.kwargs.values()]
    dims: list[Any] = [d for g in arguments for d in (g if isinstance(g, (tuple, list)) else [g])]
    operation = operation_of(reordering)
    if operation is None or operation.name == "contiguous":
        return order
    if operation.name == "permute":
        return [order[d] for d in dims]
    order = list(order)
    order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return order
