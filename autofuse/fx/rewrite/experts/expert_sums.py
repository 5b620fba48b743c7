"""Finds sums over experts that a loop adds up: `out = out + weight * expert(x)`, for each expert on all tokens.

The weight of expert e is a column of sparse weights, or compares an index with e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autofuse.fx.rewrite.experts.labels import shape_of
from autofuse.fx.rewrite.experts.row_values import NotByRow, RowValues
from autofuse.fx.rewrite.experts.sparse_weights import chosen_index
from autofuse.fx.trace.expert_spellings import node_name
from autofuse.ops.chosen_pairs import entries_of_rows

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_ADDS = frozenset({"add", "add_", "iadd"})
_ONE_MORE = frozenset({"unsqueeze", "getitem", "view", "reshape", "to", "type_as", "float"})


@dataclass(frozen=True)
class ExpertSum:
    """A sum of weighted results of all experts.

    Attributes:
        index: The index of the chosen experts.
        end: The last addition.
        weights: The weight of each expert, of shape (T, 1).
        calls: The call of each expert, of shape (T, D).
    """

    index: fx.Node
    end: fx.Node
    weights: tuple[fx.Node, ...]
    calls: tuple[fx.Node, ...]

    @property
    def experts(self) -> int:
        """The number of experts."""
        return len(self.calls)

    def additions(self) -> list[fx.Node]:
        """The additions, the last one first."""
        found = list[fx.Node]()
        node: Any = self.end
        while isinstance(node, fx.Node) and _is_addition(node) and len(found) < self.experts:
            found.append(node)
            node = node.args[0]
        return found

    def contributions(self, values: RowValues) -> tuple[fx.Node, fx.Node]:
        """The rows of the terms, and the weights (T, E). Raises NotByRow."""
        rank = len(shape_of(self.weights[0]))
        weights = values.call("call_function", torch.cat, (self.weights, -1))
        values.replaced |= {u for call in self.calls for u in call.users} | {*self.additions()}
        results = values.experts(list(self.calls), "T" * (rank - 1) + "F")
        rows = values.rows
        entries = values.call("call_function", entries_of_rows, (weights, False, rows.experts, rows.token, rows.expert))
        if shape_of(self.calls[0])[:-1] != shape_of(self.weights[0])[:-1]:
            raise NotByRow
        column = values.call("call_method", "unsqueeze", (entries, -1))
        return values.call("call_function", torch.mul, (column, results)), weights


def find_expert_sums(graph: fx.Graph) -> list[ExpertSum]:
    """Every such sum in a graph."""
    found = []
    for node in graph.nodes:
        if _is_addition(node) and not any(_is_addition(u) and u.args[0] is node for u in node.users):
            terms = [_term(t) for t in _terms(node) if not (type(t) is int and t == 0)]  # sum() begins with 0
            if len(terms) > 1 and all(terms):
                found += _sum_of(node, [t for t in terms if t is not None])
    return found


def _is_addition(node: fx.Node) -> bool:
    return node_name(node) in _ADDS and len(node.args) == 2 and not node.kwargs and node.op != "call_module"


def _terms(end: fx.Node) -> list[Any]:
    """The terms of a sum from the left. Zeros at its start are no term."""
    terms: list[Any] = []
    node: Any = end
    while isinstance(node, fx.Node) and _is_addition(node):
        if node is not end and len(node.users) > 1:
            return []
        terms.append(node.args[1])
        node = node.args[0]
    starts_with_zeros = isinstance(node, fx.Node) and node_name(node) in _ZEROS and len(node.users) == 1
    return [*([] if starts_with_zeros else [node]), *terms[::-1]]


def _term(node: Any) -> tuple[fx.Node, fx.Node] | None:
    """(weight, call), if a term is the product of a weight and the result of an expert."""
    if not isinstance(node, fx.Node) or node_name(node) != "mul" or len(node.args) != 2 or len(node.users) != 1:
        return None
    for call, weight in (node.args, node.args[::-1]):
        if isinstance(call, fx.Node) and isinstance(weight, fx.Node) and call.op == "call_module":
            shape = shape_of(weight)
            fits = shape[:-1] == shape_of(call)[:-1] and shape[-1:] == (1,) and len(call.users) == 1
            return (weight, call) if fits and shape_of(node) == shape_of(call) else None
    return None


def _sum_of(end: fx.Node, terms: list[tuple[fx.Node, fx.Node]]) -> list[ExpertSum]:
    indices = [_index_of_weight(weight, e) for e, (weight, _) in enumerate(terms)]
    index, sizes = indices[0], shape_of(terms[0][0])
    if index is None or any(i is not index for i in indices) or min(sizes[:-1], default=0) < 2:
        return []
    weights, calls = zip(*terms, strict=True)
    return [ExpertSum(index, end, weights, calls)]


def _index_of_weight(node: fx.Node, e: int) -> fx.Node | None:
    """The index of experts, if a weight is zero for each token that does not choose expert e."""
    name, last = node_name(node), node.args[1] if len(node.args) > 1 else None
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if name == "getitem":
        parts = last if isinstance(last, tuple) else (last,)
        *front, column = [p for p in parts if p is not None]
        rank = len(shape_of(source))
        if column in (slice(e, e + 1), slice(e, e + 1, None)) or type(column) is int and column == e:
            whole = front == [...] or len(front) == rank - 1 and all(p == slice(None) for p in front)
            return chosen_index(source) if whole else None
        return None if front or column is not ... and column != slice(None) else _index_of_weight(source, e)
    if name == "sum":
        dim = node.kwargs.get("dim", last)
        return _compared_index(source, e) if dim in (-1, len(shape_of(source)) - 1) else None
    return _index_of_weight(source, e) if name in _ONE_MORE else None


def _compared_index(node: fx.Node, e: int) -> fx.Node | None:
    """The index in `weights * (index == e)`."""
    if node_name(node) in ("to", "float", "type_as") and isinstance(node.args[0], fx.Node):
        return _compared_index(node.args[0], e)
    if node_name(node) == "mul":
        same = [n for n in node.args if isinstance(n, fx.Node) and shape_of(n) == shape_of(node)]
        return next((i for n in same if (i := _compared_index(n, e)) is not None), None)
    if node_name(node) == "eq" and len(node.args) == 2 and type(node.args[1]) is int and node.args[1] == e:
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    return None
