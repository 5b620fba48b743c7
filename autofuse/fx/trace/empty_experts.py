"""Checks that an expert without rows adds nothing, if forward tests whether an expert has rows.

A trace takes one side of each test: that with rows. What forward does for an expert without rows is seen in a second
trace, in which every other expert has none. It must be the first trace without the turns of these experts. Otherwise
forward does something else there: it adds a number, calls the expert on other tokens, or ends the loop.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable

import torch
from torch import Tensor, fx

from autofuse.fx.trace.expert_rows import Loops
from autofuse.fx.trace.expert_turns import NotALoop, adds_rows, dependents
from autofuse.fx.trace.operation_names import erase_dead
from autofuse.ops.experts import first_rows, joined_rows, segment_rows

_OF_LOOPS = (torch.where, torch.bincount, first_rows, segment_rows, joined_rows)


def check_empty_experts(graph: fx.Graph, loops: Loops, other: fx.Graph) -> None:
    """Compare two traces of one forward, before the loops are folded.

    Args:
        graph: the trace in which each expert has rows. It stays as it is.
        loops: what it recorded about rows.
        other: the trace in which the experts of `loops.numbers` with an even number have none. It is changed.

    Raises:
        NotALoop: the second trace does more or less than the other turns.
    """
    expected, copied = _copy(graph)
    removable = set[fx.Node]()
    for name, where in loops.rows.items():
        if is_left_out(loops.numbers[name]):
            removable |= _bypass(copied[where], where)
    _erase_dead(expected, removable)
    _erase_dead(other, ())
    if _structure(expected) != _structure(other):
        raise NotALoop(next(iter(loops.rows.values()), None))


def is_left_out(number: int) -> bool:
    """Whether the expert with this number has no rows in the second trace."""
    return number % 2 == 0


def _copy(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of a graph, and the copy of each node."""
    made, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    made.output(made.graph_copy(graph, copied))
    return made, copied


def _bypass(where: fx.Node, original: fx.Node) -> set[fx.Node]:
    """Take the turn that begins with `where` out of its graph. Returns the nodes that nothing needs then."""
    nodes = dependents(where)
    ends = [n for n in nodes if adds_rows(n)]
    if len(ends) != 1 or not isinstance(ends[0].args[0], fx.Node):
        raise NotALoop(original)
    ends[0].replace_all_uses_with(ends[0].args[0])
    where.graph.erase_node(ends[0])
    return {where, *nodes} - {ends[0]}


def _erase_dead(graph: fx.Graph, removable: Collection[fx.Node]) -> None:
    erase_dead(graph, {*removable, *(n for n in graph.nodes if n.target in _OF_LOOPS)})


def _structure(graph: fx.Graph) -> Hashable:
    """The operations of a graph with their operands, by number."""
    nodes = [n for n in graph.nodes if not _is_made_when_used(n)]
    numbers = {node: i for i, node in enumerate(nodes)}

    def text(node: fx.Node) -> str:
        return f"node {numbers[node]}" if node in numbers else f"{node.target}({operands(node)})"

    def operands(node: fx.Node) -> str:
        return repr(fx.node.map_arg((node.args, node.kwargs), text))

    return tuple((n.op, n.target, operands(n)) for n in nodes)


def _is_made_when_used(node: fx.Node) -> bool:
    """Whether the recorder makes a node at its first use: a parameter, or a part of another node's result."""
    if node.op == "get_attr":
        return True
    owner = node.args[0] if node.target is operator.getitem else None
    return isinstance(owner, fx.Node) and not isinstance(owner.meta.get("v"), Tensor)
