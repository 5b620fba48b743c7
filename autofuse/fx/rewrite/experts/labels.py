"""Labels say what the dimensions of a tensor stand for: experts, tokens, or the features of a token.

Labels are a text with one letter for each dimension:

| letter | dimension |
| --- | --- |
| E | experts |
| T | tokens; several of them, in their order, are the tokens row by row |
| M | experts and tokens in one dimension: all tokens of the first expert, then those of the second |
| F | features |
| 1 | one entry, where another operand has experts or tokens |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from autofuse.fx.trace.expert_spellings import node_name

ELEMENT = frozenset("unsqueeze view reshape transpose permute contiguous to getitem mT T t float movedim".split())


def shape_of(node: Any) -> tuple[int, ...]:
    """The sizes of a node's tensor in the example."""
    value = node.meta.get("v") if isinstance(node, fx.Node) else None
    return tuple(int(n) for n in value.shape) if isinstance(value, Tensor) else ()


def reshaped(labels: str, before: Sequence[int], after: Sequence[int], experts: int) -> str | None:
    """The labels after a view, or before it: the rule is the same. None if a dimension mixes what it must not."""
    found, i, j = "", 0, 0
    while i < len(before) or j < len(after):
        first, last = i, j
        product = [before[i] if i < len(before) else 1, after[j] if j < len(after) else 1]
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while product[0] != product[1]:
            if product[0] < product[1] and i < len(before):
                product[0], i = product[0] * before[i], i + 1
            elif product[0] > product[1] and j < len(after):
                product[1], j = product[1] * after[j], j + 1
            else:
                return None
        group = _regrouped(labels[first:i], after[last:j], experts)
        if group is None:
            return None
        found += group
    return found if len(found) == len(after) else None


def _regrouped(labels: str, sizes: Sequence[int], experts: int) -> str | None:
    """The labels of dimensions of these sizes, which hold what dimensions with `labels` held."""
    count = len(sizes)
    if not labels or set(labels) <= {"F", "1"}:
        return "F" * count if "1" not in labels else labels if len(labels) == count else None
    if len(labels) == count == 1:
        return labels
    if set(labels) == {"T"}:
        return "T" * count
    if labels == "M" or labels[0] == "E" and set(labels[1:]) == {"T"}:
        if count == 1:
            return "M"
        return f"E{'T' * (count - 1)}" if sizes[0] == experts else None
    return None


def moved(labels: str, node: fx.Node) -> str | None:
    """The labels of the operand of a `transpose` or `permute`, from those of its result. None if tokens are reordered.

    A permutation of the labels of the result by the inverse order gives those of the operand.
    """
    order = permutation(node, len(labels))
    if order is None:
        return None
    operand = [""] * len(labels)
    for place, source in enumerate(order):
        operand[source] = labels[place]
    tokens = [source for place, source in enumerate(order) if labels[place] == "T"]
    return "".join(operand) if tokens == sorted(tokens) else None


def permuted(labels: str, node: fx.Node) -> str | None:
    """The labels of the result of a `transpose` or `permute`, from those of its operand."""
    order = permutation(node, len(labels))
    if order is None:
        return None
    tokens = [source for source in order if labels[source] == "T"]
    return "".join(labels[source] for source in order) if tokens == sorted(tokens) else None


def permutation(node: fx.Node, rank: int) -> tuple[int, ...] | None:
    """For each dimension of the result, the dimension of the operand."""
    name, order = node_name(node), list(range(rank))
    args: Any = node.args[1:]
    if name in ("mT", "T", "t") or name == "getattr" and node.args[1] in ("mT", "T"):
        args = (-1, -2) if rank >= 2 else ()
        name = "transpose"
    if name == "transpose" and len(args) == 2 and all(type(d) is int for d in args):
        a, b = (d % rank for d in args)
        order[a], order[b] = order[b], order[a]
        return tuple(order)
    if name == "permute":
        args = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        return tuple(d % rank for d in args) if all(type(d) is int for d in args) else None
    return None


def of_operand(labels: str, result: Sequence[int], operand: Sequence[int]) -> str:
    """The labels of an operand that is broadcast, from those of the result."""
    kept = labels[len(result) - len(operand) :]
    sizes = result[len(result) - len(operand) :]
    return "".join(
        "1" if n == 1 and m != 1 and label in "ETM" else label for label, n, m in zip(kept, operand, sizes, strict=True)
    )


def einsum_labels(node: fx.Node) -> tuple[list[str], str] | None:
    """The letters of two operands of an einsum, and of its result. None for other equations."""
    equation = node.args[0] if node.args else None
    if node_name(node) != "einsum" or not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    operands, result = equation.replace(" ", "").split("->")
    letters = operands.split(",")
    given = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if len(letters) != 2 or len(given) != 2 or any(len({*part}) < len(part) for part in (*letters, result)):
        return None
    return letters, result


def einsum_operands(node: fx.Node) -> list[Any]:
    """The operands of an einsum."""
    given = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    return list(given)
