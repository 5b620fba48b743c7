"""Recognises softmax in all spellings, and permutes the scores so that the keys are the last dimension.

Introduces softmax(x, dim). Terms that are the same for all entries of a row are removed from the scores, because they
do not change the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.canonical.arithmetic import PRODUCT_RECOGNISERS, product, total, without
from autofuse.canonical.recognise.masks import BOOLEAN, fill_of
from autofuse.canonical.shapes import from_end, source_dimension
from autofuse.canonical.view import CAST, KEEP, PERMUTE, View, literal, memoize, order_of, rewrites, strip_casts
from autofuse.ir import layout
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, Value, ancestors_by, is_const

_REDUCTIONS = frozenset({"amax", "max", "mean", "logsumexp", "sum"})
_LOW_FILL = -1e8  # far below every score, before and after the shift


@rewrites("softmax")
def _softmax(view: View, x: Value, dim: Value, dtype: Value | None = None) -> Value | None:
    if dtype is None:
        return None
    if not is_const(dtype, None):  # softmax(x, dim, dtype=torch.float32) is softmax(x.float(), dim)
        x = view.make(CAST, x)
    place = from_end(view, x, dim)
    if place is None:
        return _softmax_of_unknown_rank(view, x, dim)
    if x.op != PERMUTE and place != -1:
        order_of_scores = _scores_order(x, place)
        permuted = permuted_scores(view, x, order_of_scores) if order_of_scores else None
        if permuted is not None:
            made = view.plain("softmax", without_shift(view, permuted), view.const(-1))
            return view.permuted(made, layout.inverse(order_of_scores))
    order = order_of(x) if x.op == PERMUTE else ()
    inner, place = (x.inputs[0] if order else x), source_dimension(order, place)
    if place == -2 and (transposed := permuted_scores(view, inner, layout.SWAP)) is not None:
        made = view.plain("softmax", without_shift(view, transposed), view.const(-1))
        return view.permuted(made, layout.compose(layout.SWAP, order))
    inner = without_shift(view, inner) if place == -1 else inner
    return view.permuted(view.plain("softmax", inner, view.const(place)), order)


# The layout of the scores.


def _softmax_of_unknown_rank(view: View, x: Value, dim: Value) -> Value:
    """A softmax of scores of unknown rank. They have the rank of their matrix product, unless a bias has more."""
    core = _core_product(x)
    rank = view.rank(core) if core is not None else None
    if rank is None or dim.data != rank - 1:
        return view.plain("softmax", x, dim)
    made = view.plain("softmax", without_shift(view, x), view.const(-1))
    return view.with_assumption(made, "assumes that no bias of the scores has more dimensions than the scores")


def _scores_order(x: Value, place: int) -> layout.Tail:
    """The permutation that undoes the permutation of the matrix product in `x` and makes dimension `place` the last."""
    core = _core_product(x)
    if core is None:
        return ()
    order = layout.inverse(order_of(core)) if core.op == PERMUTE else ()
    at = source_dimension(layout.inverse(order), place)
    return order if at == -1 else layout.compose(order, layout.SWAP) if at == -2 else ()


def _core_product(x: Value) -> Value | None:
    """The matrix product inside the masks and factors of scores, with its permutation; None if there is none."""
    return next((v for v in ancestors_by(x, _operands_around_core) if _is_core(v)), None)


def _is_core(x: Value) -> bool:
    return x.op == "matmul" or x.op == PERMUTE and x.inputs[0].op in ("matmul", "mul")


def _operands_around_core(x: Value) -> tuple[Value, ...]:
    if _is_core(x) or x.op not in ("add", "mul", KEEP, CAST, CHOICE):
        return ()
    return x.inputs if x.op in ("add", "mul") else x.inputs[1:] if x.op == CHOICE else x.inputs[:1]


@memoize
def permuted_scores(view: View, x: Value, order: layout.Tail) -> Value | None:
    """Permute the dimensions of scores by permuting their parts; None if a part may have too few dimensions."""
    if view.number(x) or is_const(x):
        return x
    if x.op == PERMUTE:
        composed = layout.compose(order_of(x), order)
        inner = x.inputs[0]
        return inner if not composed else permuted_scores(view, inner, composed) if composed == layout.SWAP else None
    if x.op == "matmul" and order == layout.SWAP:
        left, right = x.inputs
        return view.plain("matmul", view.permuted(right, layout.SWAP), view.permuted(left, layout.SWAP))
    if x.op in ("add", "mul"):
        parts = _permute_all(view, x.inputs, order)
        join = total if x.op == "add" else product
        return join(view, parts) if parts else None
    if x.op in (CAST, KEEP) or x.op in BOOLEAN - {"bool"}:
        parts = _permute_all(view, x.inputs[:2], order)
        return view.plain(x.op, *parts, *x.inputs[2:], data=x.data) if parts else None
    rank = view.rank(x)
    return view.permuted(x, order) if rank is not None and rank >= len(order) else None


def _permute_all(view: View, parts: Sequence[Value], order: layout.Tail) -> list[Value]:
    """All `parts`, permuted; an empty list if one of them cannot be."""
    permuted = [t for p in parts if (t := permuted_scores(view, p, order)) is not None]
    return permuted if len(permuted) == len(parts) else []


# Terms that do not change the softmax.


@memoize
def without_shift(view: View, x: Value) -> Value:
    """`x` without terms that are the same for all entries of a row. They change neither softmax nor its gradient."""
    if x.op == "add":
        kept = [t for t in x.inputs if not _is_constant_in_rows(view, t)]
        return x if len(kept) == len(x.inputs) or not kept else without_shift(view, total(view, kept))
    if x.op == "mul":  # (x - x.amax(-1, keepdim=True)) * number
        sums, others = [f for f in x.inputs if f.op == "add"], [f for f in x.inputs if f.op != "add"]
        if len(sums) == 1 and all(literal(v) is not None or view.number(v) for v in others):
            inner = without_shift(view, sums[0])
            return x if inner is sums[0] else product(view, (inner, *others))
    if x.op == CAST:
        return view.plain(CAST, without_shift(view, x.inputs[0]), *x.inputs[1:], data=x.data)
    if x.op == KEEP and _is_low(view, x.inputs[2]):
        made = view.plain(KEEP, without_shift(view, x.inputs[0]), *x.inputs[1:])
        return view.with_assumption(made, view.assumption(x))
    if x.op == CHOICE:
        return view.make(CHOICE, x.inputs[0], *(without_shift(view, side) for side in x.inputs[1:]))
    return x


def _is_low(view: View, fill: Value) -> bool:
    number = fill_of(view, fill)
    return number is not None and not number > _LOW_FILL  # True for nan, which stands for the lowest number of a dtype


def _is_constant_in_rows(view: View, v: Value) -> bool:
    """Whether `v` is a reduction over the last dimension with keepdim=True, times numbers, or expanded again."""
    if v.op == "mul":
        tensors = [f for f in v.inputs if literal(f) is None and not view.number(f)]
        return len(tensors) == 1 and _is_constant_in_rows(view, tensors[0])
    expanded_as = None
    while v.op in (CAST, "detach", "expand_as"):
        expanded_as = v.inputs[1] if v.op == "expand_as" else expanded_as
        v = v.inputs[0]
    if v.op == ITEM and is_const(v.inputs[1], 0) or v.op == ATTRIBUTE and v.data == "values":
        v = strip_casts(v.inputs[0])
    if v.op not in _REDUCTIONS or not _is_kept_last(v):
        return False
    return expanded_as is None or strip_casts(expanded_as) is strip_casts(v.inputs[0])  # else the sum may be larger


def _is_kept_last(reduction: Value) -> bool:
    """Whether a reduction is over the last dimension, with keepdim=True."""
    return is_const(reduction.inputs[1], -1) and is_const(reduction.inputs[2], True)


# Softmax that is written with exp and sum.


@rewrites("exp")
def _exp(view: View, x: Value) -> Value | None:
    """Recognise exp(log_softmax(x)) and exp(x - logsumexp(x))."""
    inner = strip_casts(x)
    if inner.op == "log_softmax":
        made = view.make("softmax", inner.inputs[0], inner.inputs[1], view.const(None))
        return view.with_assumption(made, view.assumption(inner))
    for term in x.inputs if x.op == "add" else ():
        if term.op != "mul" or len(term.inputs) != 2 or literal(term.inputs[1]) != -1:
            continue
        normaliser, rest = strip_casts(term.inputs[0]), without(x.inputs, (term,))
        scores = total(view, rest) if rest else x
        if normaliser.op == "logsumexp" and normaliser.inputs[0] is scores and _is_kept_last(normaliser):
            made = view.make("softmax", scores, view.const(-1), view.const(None))
            return view.with_assumption(made, view.assumption(normaliser))
    return None


def _softmax_by_hand(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Recognise exp(x - max(x)) / sum(exp(x - max(x))), also without max(x), or with a product before the division."""
    for top in factors:
        weights = top.inputs[0] if top.op == "matmul" else top
        if weights.op != "exp":
            continue
        below = view.plain("reciprocal", view.plain("sum", weights, view.const(-1), view.const(True)))
        rest = without(factors, (top, below))
        if rest is not None:
            made = view.plain("softmax", without_shift(view, weights.inputs[0]), view.const(-1))
            return [*rest, made if top is weights else view.plain("matmul", made, top.inputs[1])], constant
    return None


PRODUCT_RECOGNISERS.append(_softmax_by_hand)
