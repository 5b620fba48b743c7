"""The canonical form of layout: transposes become permutations of the last dimensions, and einsum becomes matmul.

This file knows dimensions. It knows no arithmetic, mask or dtype.
"""

from __future__ import annotations

from autofuse.canonical.view import CAST, PERMUTE, View, order_of, rewrites
from autofuse.ir import layout
from autofuse.ir.graph import ITEM, TUPLE, Value, is_const

_REDUCTIONS = frozenset({"mean", "sum", "amax", "logsumexp", "var", "std"})
_ELEMENTWISE = frozenset({"add", "mul", "sqrt", "rsqrt", "square", "reciprocal", CAST})


@rewrites("mT")
def _m_t(view: View, x: Value) -> Value:
    return view.permuted(x, layout.SWAP)


@rewrites("t")
def _t(view: View, x: Value) -> Value | None:
    """x.t() transposes a matrix, and returns a vector unchanged."""
    return view.permuted(x, layout.SWAP) if view.rank(x) == 2 else None


@rewrites("transpose")
def _transpose(view: View, x: Value, first: Value, second: Value) -> Value | None:
    a, b = from_end(view, x, first), from_end(view, x, second)
    return None if a is None or b is None else view.permuted(x, layout.transposition(a, b))


@rewrites("permute")
def _permute(view: View, x: Value, dims: Value) -> Value | None:
    order = [d.data for d in elements(dims)]
    if not order or not all(type(d) is int for d in order):
        return view.plain("permute_by", x, dims)  # PERMUTE always has a known permutation
    return view.permuted(x, layout.tail(tuple(d for d in order if isinstance(d, int))))


@rewrites("rearrange")
def _rearrange(view: View, x: Value, pattern: Value, axes: Value) -> Value | None:
    """A pattern that only permutes: `rearrange(w, "b i j -> b j i")`."""
    before, _, after = (str(pattern.data) if x.op != TUPLE else "").partition("->")
    names, names_after = before.split(), after.split()
    if not names or sorted(names) != sorted(names_after) or not all(n.isidentifier() for n in names):
        return None
    return view.permuted(x, layout.tail(tuple(names.index(n) - len(names) for n in names_after)))


@rewrites("dropout")
def _dropout(view: View, x: Value, p: Value, training: Value) -> Value | None:
    """Dropout of a permuted value is permuted dropout. Other entries are dropped, but these are random anyway."""
    if x.op != PERMUTE:
        return None
    return view.permuted(view.fresh("dropout", x.inputs[0], p, training), order_of(x))


@rewrites("contiguous", "clone", "identity")
def _identity(view: View, x: Value) -> Value:
    return x


@rewrites("matmul")
def _matmul(view: View, left: Value, right: Value) -> Value | None:
    """Move probabilities to the left: v.mT @ weights.mT is (weights @ v).mT."""
    if _is_probabilities(left) or not _is_probabilities(right):
        return None
    weights, value = view.permuted(right, layout.SWAP), view.permuted(left, layout.SWAP)
    return view.permuted(view.plain("matmul", weights, value), layout.SWAP)


@rewrites("einsum")
def _einsum(view: View, equation: Value, operands: Value) -> Value | None:
    return _contraction(view, equation.data, elements(operands))


@rewrites("einops_einsum")
def _einops_einsum(view: View, operands: Value) -> Value | None:
    return _contraction(view, operands.inputs[-1].data, operands.inputs[:-1])


def _contraction(view: View, equation: object, operands: tuple[Value, ...]) -> Value | None:
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    if operands[0] is operands[1] and (squares := _sum_of_squares(view, equation, operands[0])) is not None:
        return squares
    weighted = _is_probabilities(operands[0])
    if not weighted and _is_probabilities(operands[1]):  # einsum("bjd,bij->bid", v, weights)
        terms, arrow, result = equation.partition("->")
        equation, operands, weighted = ",".join(terms.split(",")[::-1]) + arrow + result, operands[::-1], True
    found = layout.product(equation, order_of_left=weighted)
    if found is None:
        return None
    left = view.permuted(_unsqueeze_each(view, operands[0], found.left_new), found.left)
    right = view.permuted(_unsqueeze_each(view, operands[1], found.right_new), found.right)
    return view.permuted(view.make("matmul", left, right), found.result)


def _sum_of_squares(view: View, equation: str, x: Value) -> Value | None:
    """The sum of squares, for einsum("...d,...d->...", x, x); None for another equation."""
    terms, _, result = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    letters = first.replace("...", "")
    if first != second or not letters or len({*letters}) != len(letters) or "->" not in equation:
        return None
    if not first[-1].isalpha() or result != first[:-1]:
        return None
    return view.make("sum", view.make("square", x), view.const(-1), view.const(False))


def _unsqueeze_each(view: View, x: Value, dims: tuple[int, ...]) -> Value:
    for dim in dims:
        x = view.plain("unsqueeze", x, view.const(dim))
    return x


def _is_probabilities(v: Value) -> bool:
    while v.op in (PERMUTE, CAST):
        v = v.inputs[0]
    return v.op in ("softmax", "dropout")


@rewrites("unsqueeze")
def _unsqueeze(view: View, x: Value, dim: Value) -> Value | None:
    """Unsqueeze after a reduction of the same dimension is the reduction with keepdim=True."""
    if x.op not in _REDUCTIONS or not is_const(x.inputs[-1], False) or type(dim.data) is not int:
        return _unsqueeze_operand(view, x, dim)
    rank = view.rank(x)
    place = dim.data - rank - 1 if dim.data >= 0 and rank is not None else dim.data
    same = x.inputs[1].data in (dim.data, place) and type(x.inputs[1].data) is int
    return view.make(x.op, *x.inputs[:-1], view.const(True)) if same else None


def _unsqueeze_operand(view: View, x: Value, dim: Value) -> Value | None:
    """Move the unsqueeze before elementwise operations: rsqrt(mean(x, -1) + eps).unsqueeze(-1)."""
    tensors = [i for i in x.inputs if not view.number(i)] if x.op in _ELEMENTWISE else []
    if len(tensors) != 1:
        return None
    (reduced,) = tensors
    inner = _unsqueeze(view, reduced, dim)
    return None if inner is None else view.make(x.op, *(inner if i is reduced else i for i in x.inputs))


@rewrites(ITEM)
def _item(view: View, container: Value, index: Value) -> Value | None:
    if (
        container.op == TUPLE
        and isinstance(index.data, int)
        and -len(container.inputs) <= index.data < len(container.inputs)
    ):
        return container.inputs[index.data]
    if index.op == TUPLE and index.inputs and is_const(index.inputs[-1], None) and is_const(index.inputs[0], ...):
        return view.make("unsqueeze", container, view.const(-1)) if len(index.inputs) == 2 else None
    return None


@rewrites("chunk")
def _chunk(view: View, x: Value, chunks: Value, dim: Value) -> Value | None:
    place = from_end(view, x, dim)
    return None if place is None or place == dim.data else view.plain("chunk", x, chunks, view.const(place))


def elements(v: Value) -> tuple[Value, ...]:
    """The elements of a variadic argument: `f(1, 2)` and `f((1, 2))` have the same."""
    return v.inputs[0].inputs if len(v.inputs) == 1 and v.inputs[0].op == TUPLE else v.inputs


def from_end(view: View, x: Value, dim: Value) -> int | None:
    """Dimension `dim` of `x`, counted from the end (negative); None if unknown. `x.dim() - 1` is always -1."""
    if dim.op == "add" and len(dim.inputs) == 2 and dim.inputs[0].op == "dim" and dim.inputs[0].inputs[0] is x:
        dim = dim.inputs[1]
        return dim.data if type(dim.data) is int and dim.data < 0 else None
    if type(dim.data) is not int:
        return None
    rank = view.rank(x)
    if dim.data < 0:
        return dim.data
    return dim.data - rank if rank else None


def source_dimension(order: layout.Tail, dim: int) -> int:
    """The dimension before a permutation that is dimension `dim` (from the end) after it."""
    return order[dim] if -dim <= len(order) else dim


__all__ = ["PERMUTE", "elements", "from_end", "order_of", "source_dimension"]
