"""Computes a value of all tokens and all experts for the chosen pairs of a token and an expert only.

Each pair is a row. Rows are sorted by expert. A step is copied for rows if it computes each pair independently;
otherwise NotByRow is raised, and nothing is rewritten.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.rewrite.experts.labels import (
    einsum_labels,
    einsum_operands,
    moved,
    of_operand,
    permutation,
    reshaped,
    shape_of,
)
from autofuse.fx.trace.expert_spellings import example_of_call, node_name
from autofuse.fx.trace.expert_turns import place_of_number
from autofuse.fx.trace.row_operations import ELEMENTWISE
from autofuse.ops.chosen_pairs import entries_of_rows, rows_of_tokens
from autofuse.ops.experts import each_expert, expert_linear
from autofuse.torch_private import FakeTensorMode

_VIEWS = frozenset({"view", "reshape", "unflatten", "flatten"})
_MOVES = frozenset({"transpose", "permute", "mT", "t", "T"})
_PARTS = frozenset({"chunk", "split", "tensor_split"})
_PRODUCTS = frozenset({"bmm", "matmul"})


class NotByRow(Exception):
    """A step does not compute each pair of a token and an expert independently."""


@dataclass(frozen=True)
class PairRows:
    """The nodes that say which rows there are.

    Attributes:
        expert: The expert of each row.
        token: The token of each row.
        ends: Where each expert's rows end.
        experts: The number of experts.
        tokens: The number of tokens in the example.
    """

    expert: fx.Node
    token: fx.Node
    ends: fx.Node
    experts: int
    tokens: int


class RowValues:
    """Writes nodes for rows into a graph, before the node that they replace."""

    def __init__(
        self, graph: fx.Graph, rows: PairRows, mode: FakeTensorMode, root: nn.Module,
        is_token_wise: Callable[[fx.Node], bool],
    ) -> None:  # fmt: skip
        self.graph, self.rows, self.mode, self.root = graph, rows, mode, root
        self.is_token_wise = is_token_wise
        self._known: dict[tuple[fx.Node, str], fx.Node] = {}
        self.replaced: set[fx.Node] = set()  # the steps that are computed by row now
        self.calls: set[fx.Node] = set()  # the calls of experts among them

    def of(self, node: Any, labels: str) -> fx.Node:
        """The rows (R, features) of a value. Raises NotByRow."""
        if not isinstance(node, fx.Node) or len(labels) != len(shape_of(node)):
            raise NotByRow
        if (node, labels) not in self._known:
            self._known[node, labels] = self._rows_of(node, labels)
        return self._known[node, labels]

    def _rows_of(self, node: fx.Node, labels: str) -> fx.Node:
        shape = shape_of(node)
        kept = labels.replace("1", "")
        if "M" not in labels and "E" not in labels and "T" in labels:
            return self._tokens(node, labels, shape)
        if "M" not in labels and "T" not in labels and "E" in labels:
            if kept != "E" + "F" * (len(kept) - 1):
                raise NotByRow
            entries = self._without_ones(node, labels, shape)
            return self.call("call_function", operator.getitem, (entries, self.rows.expert))
        if not set(labels) & set("METF"):
            raise NotByRow
        if not set(labels) & set("MET"):
            raise NotByRow  # the same for all rows: of_same handles it
        return self._computed(node, labels, shape)

    def _tokens(self, node: fx.Node, labels: str, shape: tuple[int, ...]) -> fx.Node:
        kept = labels.replace("1", "")
        dims = kept.count("T")
        sizes = [n for n, label in zip(shape, labels, strict=True) if label == "T"]
        if kept != "T" * dims + "F" * (len(kept) - dims) or math.prod(sizes) != self.rows.tokens:
            raise NotByRow
        entries = self._without_ones(node, labels, shape)
        return self.call("call_function", rows_of_tokens, (entries, dims, self.rows.token))

    def _without_ones(self, node: fx.Node, labels: str, shape: tuple[int, ...]) -> fx.Node:
        """The value without the dimensions with the label 1."""
        for d in reversed([d for d, label in enumerate(labels) if label == "1"]):
            node = self.call("call_method", "squeeze", (node, d))
        return node

    # Steps of which all experts' results of all tokens are computed.

    def _computed(self, node: fx.Node, labels: str, shape: tuple[int, ...]) -> fx.Node:
        name = node_name(node)
        if all(n == 1 for n, label in zip(shape, labels, strict=True) if label == "F"):
            return self._entries(node, labels)
        if node.meta.get("writes") or node.op not in ("call_function", "call_method"):
            raise NotByRow
        step = next((s for names, s in _STEPS.items() if name in names), None)
        if step is None:
            raise NotByRow
        made = step(self, node, labels)
        self.replaced.add(node)
        return made

    def _entries(self, node: fx.Node, labels: str) -> fx.Node:
        """The entry of each pair in a value without features."""
        plain, rows = labels.replace("F", ""), self.rows
        first = plain in ("M", "E" + "T" * (len(plain) - 1))
        if not first and plain != "T" * (len(plain) - 1) + "E":
            raise NotByRow
        for d in reversed([d for d, label in enumerate(labels) if label == "F"]):
            node = self.call("call_method", "squeeze", (node, d))
        entry = self.call("call_function", entries_of_rows, (node, first, rows.experts, rows.token, rows.expert))
        for _ in range(labels.count("F")):
            entry = self.call("call_method", "unsqueeze", (entry, -1))
        return entry

    def _elementwise(self, node: fx.Node, labels: str) -> fx.Node:
        operands = list(node.all_input_nodes)[: 1 if node_name(node) == "type_as" else None]
        found: dict[fx.Node, fx.Node] = {}
        for operand in operands:
            if not shape_of(operand):
                found[operand] = operand
                continue
            given = of_operand(labels, shape_of(node), shape_of(operand))
            if set(given) & set("MET"):
                found[operand] = self.of(operand, given)
                if given.count("F") != labels.count("F"):
                    raise NotByRow
            else:
                found[operand] = self._same(operand, labels.count("F"))
        return self._copy(node, found)

    def _same(self, node: fx.Node, features: int) -> fx.Node:
        """A value that is the same for all rows, without leading dimensions of one entry."""
        shape = shape_of(node)
        for _ in range(len(shape) - features):
            node = self.call("call_method", "squeeze", (node, 0))
        if any(n != 1 for n in shape[: len(shape) - features]):
            raise NotByRow
        return node

    def _copy(self, node: fx.Node, found: dict[fx.Node, fx.Node]) -> fx.Node:
        made = self.graph.node_copy(node, lambda n: found.get(n, n))
        made.meta = {"place": node.meta.get("place"), "v": self._value(made)}
        return made

    def _view(self, node: fx.Node, labels: str) -> fx.Node:
        source: Any = node.args[0]
        before = reshaped(labels, shape_of(node), shape_of(source), self.rows.experts)
        features = [
            [n for n, label in zip(shape, found or "", strict=False) if label == "F"]
            for shape, found in ((shape_of(node), labels), (shape_of(source), before))
        ]
        if before is None or features[0] != features[1]:
            raise NotByRow
        return self.of(source, before)

    def _move(self, node: fx.Node, labels: str) -> fx.Node:
        source: Any = node.args[0]
        before = moved(labels, node)
        order = permutation(node, len(labels))
        features = [d for d, label in zip(order or (), labels, strict=True) if label == "F"]
        if before is None or features != sorted(features):
            raise NotByRow
        return self.of(source, before)

    def _unsqueeze(self, node: fx.Node, labels: str) -> fx.Node:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if type(dim) is not int:
            raise NotByRow
        dim %= len(labels)
        before = labels[:dim] + labels[dim + 1 :]
        if labels[dim] == "1":
            return self.of(node.args[0], before)
        if labels[dim] != "F" or dim != len(labels) - 1:
            raise NotByRow
        return self.call("call_method", "unsqueeze", (self.of(node.args[0], before), -1))

    def _repeat(self, node: fx.Node, labels: str) -> fx.Node:
        """`x.repeat(E, 1)`, `x.expand(E, -1, -1)`: all tokens for each expert."""
        source: Any = node.args[0]
        shape, result = shape_of(source), shape_of(node)
        if node_name(node) == "repeat" and labels[0] == "M" and len(shape) == len(result):
            if result[0] == shape[0] * self.rows.experts and result[1:] == shape[1:]:
                return self.of(source, "T" + labels[1:])
            raise NotByRow
        operand = of_operand(labels, result, shape)
        kept = zip(operand, shape, result[len(result) - len(shape) :], strict=True)
        if any(n != m and label != "1" for label, n, m in kept):
            raise NotByRow
        return self.of(source, operand)

    def _getitem(self, node: fx.Node, labels: str) -> fx.Node:
        source, index = node.args
        if not isinstance(source, fx.Node):
            raise NotByRow
        if not isinstance(source.meta.get("v"), Tensor):
            return self._part(source, index, labels)
        parts = index if isinstance(index, tuple) else (index,)
        *front, last = parts
        if isinstance(last, slice) and (front == [...] or all(p == slice(None) for p in front)):
            if labels[-1] == "F" and (front == [...] or len(parts) == len(labels)):
                rows = self.of(source, labels)
                return self.call("call_function", operator.getitem, (rows, (..., last)))
        return self._with_new_dimensions(source, parts, labels)

    def _with_new_dimensions(self, source: fx.Node, parts: tuple[Any, ...], labels: str) -> fx.Node:
        """`x[None]`, `x[..., None]`, `b[..., None, :]`."""
        if any(p is not None and p is not ... and p != slice(None) for p in parts):
            raise NotByRow
        if ... in parts:
            at = parts.index(...)
            fill = len(labels) - (len(parts) - 1)
            parts = (*parts[:at], *[slice(None)] * fill, *parts[at + 1 :])
        parts = (*parts, *[slice(None)] * (len(labels) - len(parts)))
        new = [d for d, p in enumerate(parts) if p is None]
        before = "".join(label for d, label in enumerate(labels) if d not in new)
        if all(labels[d] == "1" for d in new):
            return self.of(source, before)
        if [labels[d] for d in new] == ["F"] and new == [len(labels) - 1]:
            return self.call("call_method", "unsqueeze", (self.of(source, before), -1))
        raise NotByRow

    def _part(self, parts: fx.Node, index: Any, labels: str) -> fx.Node:
        """`x.chunk(2, dim=-1)[0]`."""
        dim = parts.kwargs.get("dim", parts.args[2] if len(parts.args) > 2 else None)
        if node_name(parts) not in _PARTS or dim not in (-1, len(labels) - 1) or labels[-1] != "F":
            raise NotByRow
        if (parts, "parts") not in self._known:
            rows = self.of(parts.args[0], labels)
            self._known[parts, "parts"] = self.call("call_method", node_name(parts), (rows, parts.args[1], -1))
            self.replaced.add(parts)
        return self.call("call_function", operator.getitem, (self._known[parts, "parts"], index))

    # Products with each expert's matrix.

    def _product(self, node: fx.Node, labels: str) -> fx.Node:
        """`bmm(x, w)` and `x @ w` with `w` of shape (E, D, F), and `x @ w` with one matrix for all experts."""
        x, weight = node.args[:2]
        shape, rank = shape_of(weight), len(labels)
        if labels[-1] != "F" or labels.count("F") != 1 or not isinstance(x, fx.Node):
            raise NotByRow
        given = of_operand(labels[:-1], shape_of(node)[:-1], shape_of(x)[:-1]) + "F"
        if len(shape) == 2:
            return self._copy(node, {x: self.of(x, given)})
        if len(shape) != 3 or rank != 3 or labels[0] != "E" or shape[0] != self.rows.experts:
            raise NotByRow
        return self._linear(self.of(x, given), weight, True)

    def _with_bias(self, node: fx.Node, labels: str) -> fx.Node:
        """`baddbmm(bias, x, w)`."""
        bias, x, weight = node.args[:3]
        if len(node.args) > 3 or node.kwargs or labels != "ETF" or not isinstance(bias, fx.Node):
            raise NotByRow
        product = self._linear(self.of(x, labels), weight, True)
        shift = self.of(bias, of_operand(labels, shape_of(node), shape_of(bias)))
        return self.call("call_function", torch.add, (product, shift))

    def _linear(self, x: fx.Node, weight: Any, transposed: bool) -> fx.Node:
        return self.call("call_function", expert_linear, (x, weight, None, self.rows.ends, transposed))

    def _einsum(self, node: fx.Node, labels: str) -> fx.Node:
        equation = einsum_labels(node)
        if equation is None:
            raise NotByRow
        (one, other), result = equation
        known = dict(zip(result, labels, strict=True))
        operands = list(zip((one, other), einsum_operands(node), strict=True))
        weights = [p for p in operands if not any(known.get(c) in ("T", "M") for c in p[0])]
        if len(weights) != 1:
            raise NotByRow
        (letters, weight), (of_x, x) = weights[0], next(p for p in operands if p is not weights[0])
        summed = [c for c in letters if c not in known]
        added = [c for c in letters if known.get(c) == "F"]
        experts = [c for c in letters if known.get(c) == "E"]
        if len(summed) != 1 or len(added) != 1 or len(experts) != 1 or summed[0] not in of_x or len(letters) != 3:
            raise NotByRow
        if added[0] in of_x or any(known.get(c, "F") == "F" and c != summed[0] for c in of_x):
            raise NotByRow
        order = [letters.index(c) for c in (experts[0], summed[0], added[0])]
        if order not in ([0, 1, 2], [0, 2, 1]):
            weight, order = self.call("call_method", "permute", (weight, *order)), [0, 1, 2]
        if of_x[-1] != summed[0]:
            raise NotByRow
        rows = self.of(x, "".join(known.get(c, "F") for c in of_x))
        return self._linear(rows, weight, order == [0, 1, 2])

    def _shared(self, node: fx.Node, labels: str) -> fx.Node:
        """`F.linear` with one matrix for all experts, and a norm over the features."""
        x, *others = node.all_input_nodes
        if labels[-1] != "F" or any(len(shape_of(n)) > 2 for n in others) or node.args[0] is not x:
            raise NotByRow
        return self._copy(node, {x: self.of(x, labels)})

    def _along_last(self, node: fx.Node, labels: str) -> fx.Node:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        if dim not in (-1, len(labels) - 1) or labels[-1] != "F" or len(node.all_input_nodes) != 1:
            raise NotByRow
        made = self._copy(node, {node.all_input_nodes[0]: self.of(node.all_input_nodes[0], labels)})
        if dim != -1:
            raise NotByRow
        return made

    def _stack(self, node: fx.Node, labels: str) -> fx.Node:
        """`torch.stack([expert(x) for expert in self.experts], dim)`."""
        calls = node.args[0]
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        if not isinstance(calls, (list, tuple)) or type(dim) is not int or labels[dim % len(labels)] != "E":
            raise NotByRow
        dim %= len(labels)
        return self.experts(list(calls), labels[:dim] + labels[dim + 1 :])

    def experts(self, calls: list[Any], labels: str) -> fx.Node:
        """The rows of the results of calls of all experts with the same tokens."""
        if len(calls) != self.rows.experts or labels[-1:] != "F":
            raise NotByRow
        chains = [self._layers(call) for call in calls]
        sources = {layers[0].args[0] for layers in chains}
        if len(sources) != 1 or not all(_are_alike(chains[0], layers, e) for e, layers in enumerate(chains) if e):
            raise NotByRow
        modules = []
        for layers in chains:
            reads = [self.graph.get_attr(str(layer.target)) for layer in layers]
            for read in reads:
                read.meta["v"] = self.root.get_submodule(str(read.target))
            modules.append(tuple(reads) if len(reads) > 1 else reads[0])
        x = self.of(sources.pop(), labels)
        self.calls |= {layer for layers in chains for layer in layers}
        self.replaced |= self.calls
        return self.call("call_function", each_expert, (tuple(modules), x, self.rows.ends, True))

    def _layers(self, call: Any) -> list[fx.Node]:
        """The calls of the layers of an expert, the first one first: a Sequential has several."""
        layers: list[fx.Node] = []
        while isinstance(call, fx.Node) and call.op == "call_module" and (not layers or len(call.users) == 1):
            if len(call.args) != 1 or call.kwargs or not self.is_token_wise(call):
                raise NotByRow
            same = not layers or str(call.target).rpartition(".")[0] == str(layers[0].target).rpartition(".")[0]
            if not same:
                break
            layers.insert(0, call)
            call = call.args[0]
        if not layers:
            raise NotByRow
        return layers

    # Nodes.

    def call(self, op: str, target: Any, args: tuple[Any, ...]) -> fx.Node:
        """A new node."""
        node = self.graph.create_node(op, target, args)
        node.meta["v"] = self._value(node)
        return node

    def _value(self, node: fx.Node) -> Any:
        return example_of_call(node, self.mode)


def _are_alike(first: list[fx.Node], layers: list[fx.Node], number: int) -> bool:
    """Whether the layers of another expert are those of the first one, with its number in the same place."""
    if len(first) != len(layers):
        return False
    places = {place_of_number(str(a.target), str(b.target), number) for a, b in zip(first, layers, strict=True)}
    return len(places) == 1 and None not in places


_STEPS: dict[frozenset[str], Callable[[RowValues, fx.Node, str], fx.Node]] = {
    ELEMENTWISE: RowValues._elementwise,
    _VIEWS: RowValues._view,
    _MOVES | {"getattr"}: RowValues._move,
    frozenset({"unsqueeze"}): RowValues._unsqueeze,
    frozenset({"repeat", "expand", "expand_as"}): RowValues._repeat,
    frozenset({"getitem"}): RowValues._getitem,
    _PRODUCTS: RowValues._product,
    frozenset({"baddbmm"}): RowValues._with_bias,
    frozenset({"einsum"}): RowValues._einsum,
    frozenset({"linear"}): RowValues._shared,
    frozenset({"softmax", "log_softmax"}): RowValues._along_last,
    frozenset({"stack"}): RowValues._stack,
}
