"""Recognises label smoothing by the probabilities of the target's class and of the other classes.

torch distributes a share s over all K classes: the target has 1 - s + s / K, and each other class s / K. Code that
distributes e over the other K - 1 classes has 1 - e and e / (K - 1), which is torch's formula with s = e K / (K - 1).
This file knows numbers and one-hot vectors. It knows no loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.canonical.arithmetic import factors_of, product, total, without
from autofuse.canonical.recognise.class_rows import ClassRows, torch_class_dim
from autofuse.canonical.sizes import ensures_size, is_size, lengths, same_shape, size_query, whole_shape
from autofuse.canonical.view import View, literal, memoize, strip_casts
from autofuse.ir.graph import TUPLE, Value, ancestors_by, is_const

_LEAST = 1e-12  # a smaller share of a class is a rounding error
_AT_MOST = 0.5  # for e up to this, s = e K / (K - 1) is at most 1 for every K; torch rejects a larger s
_SMALL = "assumes that the other classes share a probability of at most one half"


@dataclass(frozen=True)
class LabelShares:
    """The probability of the target's class (`on`), and of each other class (`off`)."""

    on: Value
    off: Value


def smoothed_one_hot(view: View, v: Value) -> tuple[Value, LabelShares] | None:
    """The one-hot vectors that `v` smooths, and the values of `v` where they are 1 and 0; None if it smooths none."""
    v = strip_casts(v)
    if v.op == "scatter" and (base := _fill_of_full(view, strip_casts(v.inputs[0]))) is not None:
        zeros = view.plain("zeros_like", v.inputs[0], view.plain(TUPLE))
        hot = view.plain("scatter", zeros, *v.inputs[1:3], view.const(1))
        return hot, LabelShares(v.inputs[3], base)
    found = set(_one_hots(v)) if v.op in ("add", "mul") else set()
    if len(found) != 1:
        return None
    (hot,) = found
    on, off = _number_where(view, v, hot, 1), _number_where(view, v, hot, 0)
    return None if on is None or off is None else (hot, LabelShares(on, off))


def _fill_of_full(view: View, v: Value) -> Value | None:
    """The fill of a tensor that has the shape of another one; None for another tensor."""
    if v.op in ("full_like", "fill"):
        return v.inputs[1]
    sizes = v.inputs[0].inputs if v.op == "full" and v.inputs[0].op == TUPLE else v.inputs[:1] if v.op == "full" else ()
    return v.inputs[1] if whole_shape(view, sizes) is not None else None


def _one_hots(v: Value) -> Iterator[Value]:
    for part in ancestors_by(
        strip_casts(v), lambda v: tuple(map(strip_casts, v.inputs)) if v.op in ("add", "mul") else ()
    ):
        if part.op == "one_hot" or part.op == "scatter" and is_const(part.inputs[3], 1, 1.0):
            yield part


@memoize
def _number_where(view: View, v: Value, hot: Value, n: int) -> Value | None:
    """The value of `v` at the entries where `hot` is `n`; None if unknown."""
    v = strip_casts(v)
    if v is hot:
        return view.const(n)
    if view.number(v):
        return v
    parts = [_number_where(view, p, hot, n) for p in v.inputs] if v.op in ("add", "mul") else [None]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if v.op == "add":
        return total(view, known)
    return view.const(0) if any(literal(p) == 0 for p in known) else product(view, known)


def smoothing_of(
    view: View, given: LabelShares, log_probs: ClassRows, classes: Value | None = None
) -> tuple[Value, str] | None:
    """Compute torch's label_smoothing from the probabilities of the classes.

    Args:
        view: the canonical view.
        given: the probabilities.
        log_probs: the log-probabilities of the loss.
        classes: the number of classes, if the program names it.

    Returns:
        The smoothing and the assumption under which it is right; None if there is none.
    """
    on, off = literal(given.on), literal(given.off)
    if on is not None and off is not None:
        return _smoothing_of_literals(view, on, off, log_probs)
    for inverse in factors_of(given.off):
        rest = without(factors_of(given.off), (inverse,)) if inverse.op == "reciprocal" else None
        if rest is None:
            continue
        spread = product(view, rest or [view.const(1)])
        others = _without_minus_one(view, inverse.inputs[0])
        negative = product(view, (spread, view.const(-1)))
        inverted = inverse.inputs[0]
        if others is not None and _is_equal_number(given.on, total(view, (view.const(1), negative))):
            count, smoothing = others, product(view, (given.off, others))
        elif _is_equal_number(given.on, total(view, (view.const(1), negative, given.off))):
            count, smoothing = inverted, spread
        else:
            continue
        share = literal(spread)
        if share is not None and not 0 <= share <= _AT_MOST:
            return None
        if count is classes or _counts_classes(view, count, log_probs):
            return smoothing, "" if share is not None else _SMALL
    return None


def _smoothing_of_literals(view: View, on: float, off: float, log_probs: ClassRows) -> tuple[Value, str] | None:
    """The smoothing for two literals, which add up to 1 for a single number of classes; None if there is none."""
    classes = round((1 - on) / off) + 1 if off > _LEAST and 0 <= on <= 1 else 0
    if classes < 2 or not math.isclose(on + off * (classes - 1), 1, rel_tol=1e-9) or off * classes > 1:
        return None
    logits, place = log_probs.value.inputs[0], _class_dimension(view, log_probs)
    known = lengths(view, logits) if place is not None else None
    size = known[place] if known is not None and place is not None and -place <= len(known) else None
    if size == classes or place is not None and type(size) is not int and ensures_size(view, logits, place, classes):
        return view.const(off * classes), ""
    return None


def _without_minus_one(view: View, v: Value) -> Value | None:
    """K, if `v` is K - 1; else None."""
    return total(view, v.inputs[:-1]) if v.op == "add" and literal(v.inputs[-1]) == -1 else None


def _is_equal_number(a: Value, b: Value) -> bool:
    one, other = literal(a), literal(b)
    return a is b or one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9)


def _class_dimension(view: View, log_probs: ClassRows) -> int | None:
    """The dimension of the classes, from the end; None if unknown."""
    rank = view.rank(log_probs.value) or view.rank(log_probs.value.inputs[0])
    if log_probs.dim < 0:
        return log_probs.dim
    return torch_class_dim(rank) if rank and log_probs.dim == 1 else None


def _counts_classes(view: View, v: Value, log_probs: ClassRows) -> bool:
    """Whether `v` is the number of classes: a size of the logits or of their log_softmax."""
    v = v.inputs[0] if v.op == "number" else v
    found, place = size_query(v), _class_dimension(view, log_probs)
    if found is None or found[1] is None:
        return False
    for x in (log_probs.value, log_probs.value.inputs[0]):
        if same_shape(view, found[0], x) and found[1] == log_probs.dim:
            return True
        if place is not None and is_size(view, v, x, place):
            return True
    return False
