"""Rotates query and key in one call where a rewritten forward rotates them by the same angles.

Two calls of ops.rotary become one of ops.rotary_pair, if that operation would rotate both in one launch. Neither call
moves past a write or past a use of its result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.install.unshared_operands import UNSAVED
from autofuse.fx.trace.operation_names import replace_node
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.kernels.operation import OPERATIONS


def pair_rotations(trace: ForwardTrace) -> None:
    """Replace pairs of rotations by the same angles.

    Args:
        trace: The rewritten trace.
    """
    for first, second in list(_pairs(trace.graph)):
        place = _common_place(trace.graph, first, second)
        if place is not None and _is_one_launch(first, second):
            _replace(trace.graph, first, second, place)


def _pairs(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Successive rotations by the same angles. Each node is in one pair at most."""
    by_angles: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is ops.rotary and UNSAVED not in node.meta:
            by_angles.setdefault((*node.args[1:], *sorted(node.kwargs.items())), []).append(node)
    for nodes in by_angles.values():
        yield from list(pairwise(nodes))[::2]


def _common_place(graph: fx.Graph, first: fx.Node, second: fx.Node) -> fx.Node | None:
    """The node before which both rotations can run; None if one would move past a write or a use of its result."""
    nodes = list(graph.nodes)
    start, end = nodes.index(first), nodes.index(second)
    if any(n.meta.get("writes") for n in nodes[start:end]):
        return None
    of_second = second.args[0]
    if isinstance(of_second, fx.Node) and of_second < first:
        return first
    return second if all(nodes.index(user) > end for user in first.users) else None


def _is_one_launch(first: fx.Node, second: fx.Node) -> bool:
    """Whether ops.rotary_pair has a kernel for both."""
    values: Any = fx.node.map_arg(
        ((first.args[0], second.args[0], *first.args[1:]), first.kwargs), lambda n: n.meta.get("v")
    )
    args, kwargs = values
    if not all(isinstance(a, Tensor) for a in args[:4]):
        return False
    operation = OPERATIONS["rotary_pair"]
    return operation.taker(*args, **kwargs) is not operation.torch


def _replace(graph: fx.Graph, first: fx.Node, second: fx.Node, place: fx.Node) -> None:
    with graph.inserting_before(place):
        both = graph.call_function(
            ops.rotary_pair, (first.args[0], second.args[0], *first.args[1:]), dict(first.kwargs)
        )
        results = [graph.call_function(operator.getitem, (both, i)) for i in (0, 1)]
    both.meta = {k: v for k, v in first.meta.items() if k == "place"}
    both.meta["v"] = (first.meta["v"], second.meta["v"])
    for old, new in zip((first, second), results, strict=True):
        new.meta = dict(old.meta)
        replace_node(old, new)
        graph.erase_node(old)
