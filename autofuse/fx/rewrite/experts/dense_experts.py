"""Finds mixtures that compute all experts for all tokens, and computes the chosen experts only.

`weights`, of which all but a few entries for each token are zero (sparse_weights.py), are multiplied with the results
or with the inputs of all experts, and the products are added up over the experts. From the weights, the labels of
dimensions are followed to that sum; from there, the experts' results are computed by row (row_values.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from autofuse.fx.rewrite.experts.labels import (
    einsum_labels,
    einsum_operands,
    permuted,
    reshaped,
    shape_of,
)
from autofuse.fx.rewrite.experts.sparse_weights import chosen_index
from autofuse.fx.trace.expert_spellings import node_name

_VIEWS = frozenset({"view", "reshape", "unflatten", "flatten"})
_MOVES = frozenset({"transpose", "permute", "mT", "t", "T", "getattr"})
_SAME = frozenset("to float double half bfloat16 type_as contiguous clone".split())
_ZERO_OF_ZERO = frozenset("relu silu gelu tanh relu6 mish selu elu leaky_relu square neg".split())  # f(0) = 0
_PARTS = frozenset({"chunk", "split"})


@dataclass(frozen=True)
class _Labelled:
    """A value that is zero for each pair of a token and an expert that is not chosen.

    Attributes:
        node: The node.
        labels: What its dimensions stand for.
    """

    node: fx.Node
    labels: str


@dataclass(frozen=True)
class DenseExperts:
    """A sum over all experts of which the terms of a few count.

    Attributes:
        weights: The sparse weights (T, E).
        index: The index of the chosen experts.
        end: The node of the sum.
        like: A value without features that has the same dimensions of tokens as the sum.
        terms: The factors of the terms, with their labels.
    """

    weights: fx.Node
    index: fx.Node
    end: fx.Node
    like: _Labelled
    terms: tuple[_Labelled, ...]

    @property
    def experts(self) -> int:
        """The number of experts."""
        return shape_of(self.weights)[-1]


def find_dense_experts(graph: fx.Graph) -> list[DenseExperts]:
    """Every such sum in a graph."""
    found: list[DenseExperts] = []
    for node in graph.nodes:
        index = chosen_index(node) if node_name(node) != "one_hot" else None
        if index is None or all(chosen_index(user) is not None and _same_shape(user, node) for user in node.users):
            continue
        shape = shape_of(node)
        if len(shape) > 1 and min(shape) > 1:
            found += _ends(_Labelled(node, "T" * (len(shape) - 1) + "E"), index, shape[-1])
    return found


def _same_shape(a: fx.Node, b: fx.Node) -> bool:
    return shape_of(a) == shape_of(b)


def _ends(weights: _Labelled, index: fx.Node, experts: int) -> list[DenseExperts]:
    """Follow the labels from the weights to the sums over experts."""
    known: dict[fx.Node, _Labelled] = {weights.node: weights}
    like, found, todo = weights, list[DenseExperts](), [weights.node]
    likes = [weights]
    while todo:
        value = known[todo.pop()]
        for user in value.node.users:
            terms = _terms(user, value)
            if terms is not None:
                rest = rest_of(terms, user)
                like = next((k for k in likes if rest and tokens_in(k.labels) == tokens_in(rest)), like)
                found.append(DenseExperts(weights.node, index, user, like, terms))
                continue
            labels = _labels_of_user(user, value, experts)
            if labels is not None and user not in known and len(known) < _LIMIT:
                known[user] = _Labelled(user, labels)
                todo.append(user)
                if "M" not in labels and (labels[-1] != "F" or shape_of(user)[-1:] == (1,)):
                    likes.append(known[user])
    return found


_LIMIT = 64  # a bound on the nodes that are followed from one tensor of weights


def tokens_in(labels: str) -> str:
    """The labels of dimensions of tokens."""
    return "".join(label for label in labels if label == "T")


def rest_of(terms: tuple[_Labelled, ...], end: fx.Node) -> str:
    """The labels of the sum."""
    equation = einsum_labels(end)
    if equation is not None:
        letters = {
            c: k for part, t in zip(equation[0], terms, strict=True) for c, k in zip(part, t.labels, strict=True)
        }
        return "".join(letters[c] for c in equation[1])
    if len(terms) == 2:  # a matrix product
        return terms[0].labels[:-1] + "F"
    return terms[0].labels.replace("E", "")


def _terms(user: fx.Node, value: _Labelled) -> tuple[_Labelled, ...] | None:
    """The factors of the terms, if `user` adds up over the experts; None for other nodes."""
    name, labels = node_name(user), value.labels
    if "E" not in labels:
        return None
    at = labels.index("E")
    if name == "sum" and user.args[:1] == (value.node,) and not user.kwargs.get("dtype"):
        dim = user.kwargs.get("dim", user.args[1] if len(user.args) > 1 else None)
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        keeps = user.kwargs.get("keepdim", user.args[2] if len(user.args) > 2 else False)
        return (value,) if type(dim) is int and dim % len(labels) == at and not keeps else None
    if name in ("matmul", "bmm") and user.args[0] is value.node and labels.endswith("FE"):
        other = user.args[1]
        if isinstance(other, fx.Node) and len(shape_of(other)) == len(labels) and shape_of(value.node)[-2] == 1:
            return value, _Labelled(other, labels[:-2] + "EF")
        return None
    equation = einsum_labels(user)
    if equation is None or value.node not in user.all_input_nodes:
        return None
    return _einsum_terms(equation, einsum_operands(user), value)


def _einsum_terms(
    equation: tuple[list[str], str], operands: list[Any], value: _Labelled
) -> tuple[_Labelled, ...] | None:
    (one, other), result = equation
    mine, others = (one, other) if operands[0] is value.node else (other, one)
    letters = dict(zip(mine, value.labels, strict=True))
    summed = [c for c in mine if c not in result]
    if [letters[c] for c in summed] != ["E"] or summed[0] not in others:
        return None
    node = operands[1] if operands[0] is value.node else operands[0]
    if not isinstance(node, fx.Node) or any(c not in result and c != summed[0] for c in others):
        return None
    term = _Labelled(node, "".join(letters.get(c, "F") for c in others))
    return (value, term) if operands[0] is value.node else (term, value)


def _labels_of_user(user: fx.Node, value: _Labelled, experts: int) -> str | None:
    """The labels of a node that is zero wherever `value` is; None if it need not be zero, or is not understood."""
    name, labels, shape = node_name(user), value.labels, shape_of(user)
    if not shape or user.meta.get("writes"):
        return _labels_of_parts(user, value) if name in _PARTS else None
    if user.args[:1] == (value.node,) and (name in _SAME or name in _ZERO_OF_ZERO):
        return labels if shape == shape_of(value.node) else None
    if name in _VIEWS:
        return reshaped(labels, shape_of(value.node), shape, experts)
    if name in _MOVES and user.args[0] is value.node:
        return permuted(labels, user)
    if name in ("mul", "div", "truediv") and len(user.args) == 2:
        return _labels_of_product(user, value, name == "mul")
    if name == "unsqueeze" and user.args[0] is value.node:
        dim = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
        return None if type(dim) is not int else _insert_label(labels, dim % len(shape))
    if name == "getitem" and user.args[0] is value.node:
        return _labels_of_item(user, value)
    if name in ("bmm", "matmul") and user.args[0] is value.node and labels == "ETF":
        weight = shape_of(user.args[1])
        return labels if len(weight) in (2, 3) and weight[:-2] in ((), (experts,)) else None
    if (equation := einsum_labels(user)) is not None:
        return _labels_of_einsum(equation, user, value)
    return None


def _labels_of_product(user: fx.Node, value: _Labelled, commutes: bool) -> str | None:
    if user.args[0] is not value.node and not commutes:
        return None
    shape, own = shape_of(user), shape_of(value.node)
    if len(shape) != len(own):
        return None
    kept = all(n == m for n, m, label in zip(own, shape, value.labels, strict=True) if label != "F")
    return value.labels if kept else None


def _insert_label(labels: str, dim: int) -> str:
    return labels[:dim] + "F" + labels[dim:]


def _labels_of_item(user: fx.Node, value: _Labelled) -> str | None:
    index = user.args[1]
    if not isinstance(value.node.meta.get("v"), Tensor):
        return value.labels if type(index) is int else None
    parts = index if isinstance(index, tuple) else (index,)
    if any(p is not None and p is not ... and not isinstance(p, slice) for p in parts):
        return None
    if ... in parts:
        at = parts.index(...)
        fill = len(value.labels) - sum(p is not None and p is not ... for p in parts)
        parts = (*parts[:at], *[slice(None)] * fill, *parts[at + 1 :])
    found, rest = "", value.labels
    for part in parts:
        if part is not None and part != slice(None) and rest != "F":
            return None
        found += "F" if part is None else rest[0]
        rest = rest if part is None else rest[1:]
    return found + rest


def _labels_of_parts(user: fx.Node, value: _Labelled) -> str | None:
    dim = user.kwargs.get("dim", user.args[2] if len(user.args) > 2 else None)
    return value.labels if dim in (-1, len(value.labels) - 1) and value.labels[-1] == "F" else None


def _labels_of_einsum(equation: tuple[list[str], str], user: fx.Node, value: _Labelled) -> str | None:
    """The labels of a product with the matrices of the experts."""
    operands = einsum_operands(user)
    (one, other), result = equation
    mine = one if operands[0] is value.node else other
    letters = dict(zip(mine, value.labels, strict=True))
    if any(letters[c] != "F" for c in mine if c not in result):
        return None
    return "".join(letters.get(c, "F") for c in result)
