"""The replaced code and the new code of one rewrite, as two functions of the same values.

They are compared and timed without the rest of the module. In the time of a whole module, the gain of one norm would
be smaller than the noise of the other layers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Excerpt:
    """Two graphs with equal placeholders. Both read parameters of the traced module by name, and return a tuple.

    Attributes:
        operation: The name of the fused operation.
        before: The replaced code.
        after: The new code.
        example_inputs: The value of each placeholder in the trace; tensors are fakes.
        kernel: The default kernel of the operation.
    """

    operation: str
    before: fx.Graph
    after: fx.Graph
    example_inputs: tuple[Any, ...]
    kernel: str

    @property
    def key(self) -> Hashable:
        """A key. It is equal for excerpts with equal code and inputs of equal shapes, strides and dtypes."""
        codes = tuple(tuple((n.op, str(n.target), repr((n.args, n.kwargs))) for n in g.nodes) for g in self._graphs)
        return codes, tuple(map(_value_key, self.example_inputs))

    @property
    def _graphs(self) -> tuple[fx.Graph, fx.Graph]:
        return self.before, self.after

    def functions(self, module: nn.Module) -> tuple[fx.GraphModule, fx.GraphModule]:
        """`before` and `after` as modules with the parameters of `module`, which is the traced module or a copy."""
        return fx.GraphModule(module, self.before), fx.GraphModule(module, self.after)


Operands = Mapping[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]]


def build_excerpt(
    operation: str,
    old: Collection[fx.Node],
    new: Collection[fx.Node],
    results: Sequence[tuple[fx.Node, fx.Node]],
    operands: Operands,
    kernel: str,
) -> Excerpt:
    """Copy the replaced and the new nodes into two graphs.

    Args:
        operation: The name of the fused operation.
        old: The replaced nodes, which are still in the graph.
        new: The new nodes.
        results: Pairs of a replaced result and the new one.
        operands: The arguments of each old node before results were replaced.
        kernel: The default kernel of the operation.
    """
    nodes = list(results[0][0].graph.nodes)
    now = {n: (n.args, n.kwargs) for n in new}
    before = _needed_nodes(nodes, [o for o, _ in results], {*old, *(o for o, _ in results)}, operands)
    after = _needed_nodes(nodes, [n for _, n in results], set(new), now)
    # The inputs are the values that neither of the two graphs computes.
    known = {*before, *after}
    outside = {i for part, of in ((before, operands), (after, now)) for n in part for i in _inputs(of, n)} - known
    inputs = [n for n in nodes if n in outside]
    return Excerpt(
        operation,
        _build_graph(inputs, before, [o for o, _ in results], operands),
        _build_graph(inputs, after, [n for _, n in results], now),
        tuple(n.meta.get("v") for n in inputs),
        kernel,
    )


def _value_key(value: Any) -> Hashable:
    if not isinstance(value, Tensor):
        return repr(value)
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def _inputs(operands: Operands, node: fx.Node) -> list[fx.Node]:
    # Reads of attributes have no operands, and no entry.
    found: list[fx.Node] = []
    fx.node.map_arg(operands.get(node, ((), {})), lambda n: found.append(n))
    return found


def _needed_nodes(
    nodes: Sequence[fx.Node], results: Sequence[fx.Node], within: Collection[fx.Node], operands: Operands
) -> list[fx.Node]:
    """The nodes of `within` that compute `results`, and the attributes that they read, in the order of the graph."""
    needed, todo = set[fx.Node](), list(results)
    while todo:
        node = todo.pop()
        if node not in needed and (node in within or node.op == "get_attr"):
            needed.add(node)
            todo += _inputs(operands, node)
    return [n for n in nodes if n in needed]


def _build_graph(
    inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node], operands: Operands
) -> fx.Graph:
    graph = fx.Graph()
    known = {n: graph.placeholder(n.name) for n in inputs}
    for node in nodes:
        args, kwargs = fx.node.map_arg(operands.get(node, ((), {})), known.__getitem__)
        known[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
    graph.output(tuple(known[r] for r in results))
    return graph
