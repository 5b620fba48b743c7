"""Label smoothing by what each class is given: so much for the target, so much for each of the others.

torch spreads a share s over all K classes: 1 - s + s / K for the target and s / K for each other. Who spreads e over
the other K - 1 gives 1 - e and e / (K - 1), which is torch's with s = e K / (K - 1). Knows numbers and one-hot vectors;
knows no loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.canonical.arithmetic import factors_of, product, total, without
from autofuse.canonical.recognise.class_rows import ClassRows, second_or_last
from autofuse.canonical.sizes import asked, holds_size, is_size, lengths, same, whole_shape
from autofuse.canonical.view import View, bare, literal, remembered
from autofuse.ir.graph import TUPLE, Value, ancestors_by, is_const

_LEAST = 1e-12  # that anybody spreads over a class
_AT_MOST = 0.5  # of smoothing that stays below 1 whatever the number of classes; torch takes no more than 1
_SMALL = "assumes that at most half of the weight is spread over the other classes"


@dataclass(frozen=True)
class Given:
    """What a target's class is given, and every other class."""

    on: Value
    off: Value


def given_by(view: View, v: Value) -> tuple[Value, Given] | None:
    """The one-hot vectors that `v` is computed from, and what it has where those are 1 and 0; None if it is one."""
    v = bare(v)
    if v.op == "scatter" and (base := _full(view, bare(v.inputs[0]))) is not None:
        zeros = view.plain("zeros_like", v.inputs[0], view.plain(TUPLE))
        hot = view.plain("scatter", zeros, *v.inputs[1:3], view.const(1))
        return hot, Given(v.inputs[3], base)
    found = set(_one_hots(v)) if v.op in ("add", "mul") else set()
    if len(found) != 1:
        return None
    (hot,) = found
    on, off = _where(view, v, hot, 1), _where(view, v, hot, 0)
    return None if on is None or off is None else (hot, Given(on, off))


def _full(view: View, v: Value) -> Value | None:
    """The number that a tensor of the sizes of another one is full of."""
    if v.op in ("full_like", "fill"):
        return v.inputs[1]
    sizes = v.inputs[0].inputs if v.op == "full" and v.inputs[0].op == TUPLE else v.inputs[:1] if v.op == "full" else ()
    return v.inputs[1] if whole_shape(view, sizes) is not None else None


def _one_hots(v: Value) -> Iterator[Value]:
    for part in ancestors_by(bare(v), lambda v: tuple(map(bare, v.inputs)) if v.op in ("add", "mul") else ()):
        if part.op == "one_hot" or part.op == "scatter" and is_const(part.inputs[3], 1, 1.0):
            yield part


@remembered
def _where(view: View, v: Value, hot: Value, n: int) -> Value | None:
    """The number that `v` is where `hot` is `n`."""
    v = bare(v)
    if v is hot:
        return view.const(n)
    if view.number(v):
        return v
    parts = [_where(view, p, hot, n) for p in v.inputs] if v.op in ("add", "mul") else [None]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    if v.op == "add":
        return total(view, known)
    return view.const(0) if any(literal(p) == 0 for p in known) else product(view, known)


def smoothing_of(
    view: View, given: Given, log_probs: ClassRows, classes: Value | None = None
) -> tuple[Value, str] | None:
    """torch's label_smoothing for classes that are `given` so much, and what it assumes; `classes` is their number."""
    on, off = literal(given.on), literal(given.off)
    if on is not None and off is not None:
        return _of_numbers(view, on, off, log_probs)
    for inverse in factors_of(given.off):
        rest = without(factors_of(given.off), (inverse,)) if inverse.op == "reciprocal" else None
        if rest is None:
            continue
        spread = product(view, rest or [view.const(1)])
        others = _one_more(view, inverse.inputs[0])
        negative = product(view, (spread, view.const(-1)))
        inverted = inverse.inputs[0]
        if others is not None and _equal(given.on, total(view, (view.const(1), negative))):
            count, smoothing = others, product(view, (given.off, others))
        elif _equal(given.on, total(view, (view.const(1), negative, given.off))):
            count, smoothing = inverted, spread
        else:
            continue
        share = literal(spread)
        if share is not None and not 0 <= share <= _AT_MOST:
            return None
        if count is classes or _counts_classes(view, count, log_probs):
            return smoothing, "" if share is not None else _SMALL
    return None


def _of_numbers(view: View, on: float, off: float, log_probs: ClassRows) -> tuple[Value, str] | None:
    """The same where both are known: one number of classes makes them add up to 1."""
    classes = round((1 - on) / off) + 1 if off > _LEAST and 0 <= on <= 1 else 0
    if classes < 2 or not math.isclose(on + off * (classes - 1), 1, rel_tol=1e-9) or off * classes > 1:
        return None
    logits, place = log_probs.value.inputs[0], _place(view, log_probs)
    known = lengths(view, logits) if place is not None else None
    size = known[place] if known is not None and place is not None and -place <= len(known) else None
    if size == classes or place is not None and type(size) is not int and holds_size(view, logits, place, classes):
        return view.const(off * classes), ""
    return None


def _one_more(view: View, v: Value) -> Value | None:
    """K of K - 1."""
    return total(view, v.inputs[:-1]) if v.op == "add" and literal(v.inputs[-1]) == -1 else None


def _equal(a: Value, b: Value) -> bool:
    one, other = literal(a), literal(b)
    return a is b or one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9)


def _place(view: View, log_probs: ClassRows) -> int | None:
    """The dimension of the classes, from the end, if known."""
    rank = view.rank(log_probs.value) or view.rank(log_probs.value.inputs[0])
    if log_probs.dim < 0:
        return log_probs.dim
    return second_or_last(rank) if rank and log_probs.dim == 1 else None


def _counts_classes(view: View, v: Value, log_probs: ClassRows) -> bool:
    """Whether `v` is the number of classes, read off the logits or their log-softmax."""
    v = v.inputs[0] if v.op == "number" else v
    found, place = asked(v), _place(view, log_probs)
    if found is None or found[1] is None:
        return False
    for x in (log_probs.value, log_probs.value.inputs[0]):
        if same(view, found[0], x) and found[1] == log_probs.dim:
            return True
        if place is not None and is_size(view, v, x, place):
            return True
    return False
