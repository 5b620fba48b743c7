"""What a rewrite takes out of a graph and what it puts there, as two functions of the same values.

For comparing them by themselves: timed within a whole module, a norm's gain would drown in its neighbours' noise.
Knows fx graphs; must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Excerpt:
    """Two graphs with equal placeholders. `given` holds for each of these what it was in the trace: tensors as fakes.

    Both read parameters and buffers of the traced module under their names there, and return a tuple.
    """

    operation: str
    before: fx.Graph
    after: fx.Graph
    given: tuple[Any, ...]
    kernel: str  # that computes the operation by default

    @property
    def likeness(self) -> Hashable:
        """Equal for excerpts that compute the same on values of the same form."""
        codes = tuple(tuple((n.op, str(n.target), repr((n.args, n.kwargs))) for n in g.nodes) for g in self._graphs)
        return codes, tuple(map(_form, self.given))

    @property
    def _graphs(self) -> tuple[fx.Graph, fx.Graph]:
        return self.before, self.after

    def functions(self, module: nn.Module) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Both as modules that share the parameters of `module`, the traced one or a copy of it."""
        return fx.GraphModule(module, self.before), fx.GraphModule(module, self.after)


Operands = Mapping[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]]


def excerpt(
    operation: str,
    old: Collection[fx.Node],
    new: Collection[fx.Node],
    results: Sequence[tuple[fx.Node, fx.Node]],
    operands: Operands,
    kernel: str,
) -> Excerpt:
    """Of a graph in which both still stand: `old` nodes go, `new` ones have come; `results` pairs old with new ones.

    `operands` are those of the old nodes as they were before their results were replaced.
    """
    nodes = list(results[0][0].graph.nodes)
    now = {n: (n.args, n.kwargs) for n in new}
    before = _needed(nodes, [o for o, _ in results], {*old, *(o for o, _ in results)}, operands)
    after = _needed(nodes, [n for _, n in results], set(new), now)
    known = {*before, *after}
    outside = {i for part, of in ((before, operands), (after, now)) for n in part for i in _inputs(of, n)} - known
    inputs = [n for n in nodes if n in outside]
    return Excerpt(
        operation,
        _graph(inputs, before, [o for o, _ in results], operands),
        _graph(inputs, after, [n for _, n in results], now),
        tuple(n.meta.get("v") for n in inputs),
        kernel,
    )


def _form(value: Any) -> Hashable:
    if not isinstance(value, Tensor):
        return repr(value)
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def _inputs(operands: Operands, node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(operands.get(node, ((), {})), lambda n: found.append(n))
    return found


def _needed(
    nodes: Sequence[fx.Node], results: Sequence[fx.Node], within: Collection[fx.Node], operands: Operands
) -> list[fx.Node]:
    """What computes `results` among the nodes `within`, and the attributes that this reads, in order."""
    needed, todo = set[fx.Node](), list(results)
    while todo:
        node = todo.pop()
        if node not in needed and (node in within or node.op == "get_attr"):
            needed.add(node)
            todo += _inputs(operands, node)
    return [n for n in nodes if n in needed]


def _graph(
    inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node], operands: Operands
) -> fx.Graph:
    graph = fx.Graph()
    known = {n: graph.placeholder(n.name) for n in inputs}
    for node in nodes:
        args, kwargs = fx.node.map_arg(operands.get(node, ((), {})), known.__getitem__)
        known[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
    graph.output(tuple(known[r] for r in results))
    return graph
