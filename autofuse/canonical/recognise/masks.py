"""Recognises every way of dropping scores as one operation: keep(scores, boolean mask, fill).

This file knows single masks. autofuse/match/masks.py combines several masks into one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.canonical.arithmetic import PRODUCT_RECOGNISERS, SUM_RECOGNISERS, factors_of, product, without
from autofuse.canonical.view import CAST, KEEP, View, literal, rewrites, strip_casts
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, TUPLE, Value, is_const, is_full_slice, sides_of

_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
BOOLEAN = frozenset({*_OPPOSITE, "invert", "and", "or", "bool", "kept"})
SMALLEST_FILL = -1e3  # exp(-1e3) is 0 in every floating dtype, so this fill has no weight if another score is near 0
NEGLIGIBLE_FILL = -1e8  # float32 numbers of this size are 8 apart, so that no reasonable score is near it


def is_negligible(fill: float | None) -> bool:
    """Whether a fill (see fill_of) is so low that the scores do not matter."""
    return (
        fill is not None and not fill > NEGLIGIBLE_FILL
    )  # True for nan, which stands for the lowest number of a dtype


@rewrites("masked_fill")
def _masked_fill(view: View, x: Value, dropped: Value, fill: Value) -> Value | None:
    if fill_of(view, fill) is None:
        return None
    return view.plain(KEEP, x, as_boolean_mask(view, view.make("invert", dropped)), _number_of(fill, x))


@rewrites("masked_at")
def _assign_at_mask(view: View, x: Value, index: Value, fill: Value) -> Value | None:
    """`scores[mask] = fill`.

    A boolean index covers as many dimensions of the scores as it has, from its position on.
    """
    *front, dropped = index.inputs if index.op == TUPLE else (index,)
    boolean = _is_boolean(dropped)
    if fill_of(view, fill) is None or boolean is False or not all(is_const(f, ...) or is_full_slice(f) for f in front):
        return None
    places, rank, mask_rank = len(front), view.rank(x), view.rank(dropped)
    if any(is_const(f, ...) for f in front):
        fits: bool | None = places == 1
    else:
        fits = None if rank is None or mask_rank is None else rank - mask_rank == places
    if fits is False:
        return None
    assumed = "" if fits else "assumes that the mask has all dimensions of the tensor that it indexes"
    assumed = assumed if boolean else "; ".join(filter(None, ("assumes that the index is a boolean mask", assumed)))
    made = view.plain(KEEP, x, as_boolean_mask(view, view.make("invert", dropped)), _number_of(fill, x))
    return view.with_assumption(made, assumed)


def _is_boolean(v: Value) -> bool | None:
    """Whether an index is boolean: True, False (the text does not show it), or None (unknown, for `~x`)."""
    if v.op == "invert":
        return _is_boolean(v.inputs[0]) or None
    if v.op in (ITEM, "expand_as", "expand", "tril", "triu"):
        return _is_boolean(v.inputs[0])
    if v.op == "ones":
        return any(o.op == ATTRIBUTE and o.data == "bool" for o in v.inputs[-1].inputs)
    return v.op in BOOLEAN


@rewrites("where")
def _where(view: View, test: Value, x: Value, other: Value) -> Value | None:
    if literal(x) is not None and literal(other) is not None:
        return None  # this is a mask with two numbers, not masked scores
    if fill_of(view, other) is not None:
        return view.plain(KEEP, x, as_boolean_mask(view, test), _number_of(other, x))
    if fill_of(view, x) is not None:
        return view.plain(KEEP, other, as_boolean_mask(view, view.make("invert", test)), _number_of(x, other))
    return None


def as_boolean_mask(view: View, test: Value) -> Value:
    """`test`, marked as a boolean mask."""
    test = without_expand(test)
    return test if test.op in BOOLEAN else view.plain("kept", test)


@rewrites("expand")
def _expand(view: View, x: Value, shape: Value) -> Value | None:
    """`mask.expand(scores.shape)` is `mask.expand_as(scores)`."""
    read = shape.inputs[0] if len(shape.inputs) == 1 else shape
    whole = read.op == ATTRIBUTE and read.data == "shape" or read.op == "size" and is_const(read.inputs[1], None)
    return view.plain("expand_as", x, read.inputs[0]) if whole else None


def without_expand(mask: Value) -> Value:
    """`mask` without an expansion to the shape of the scores, to which it is broadcast anyway."""
    return mask.inputs[0] if mask.op == "expand_as" else mask


def _number_of(fill: Value, scores: Value) -> Value:
    """The number in a constant tensor such as torch.full_like(scores, -1e9); `fill` itself if it is a number.

    The tensor is broadcast with the scores, as a number is.
    """
    fill = strip_casts(fill)
    if fill.op in ("full", "full_like") and len(fill.inputs) > 1:
        return _number_of(fill.inputs[1], scores)
    if fill.op == "mul" and len(fill.inputs) == 2 and fill.inputs[0].op == "ones_like":
        return fill.inputs[1]
    return fill


@rewrites("invert")
def _invert(view: View, x: Value) -> Value | None:
    if x.op == "expand_as":
        return view.plain("expand_as", view.make("invert", x.inputs[0]), x.inputs[1])
    if x.op in _OPPOSITE:
        return view.make(_OPPOSITE[x.op], *x.inputs)
    if x.op == "kept":
        return view.make("invert", x.inputs[0])
    return x.inputs[0] if x.op == "invert" else None


@rewrites("logical_not")
def _logical_not(view: View, x: Value) -> Value:
    """`~x` for a boolean tensor; for numbers, whether they are zero."""
    return view.make("invert", x) if x.op in BOOLEAN else view.make("eq", x, view.const(0))


@rewrites("logical_and")
def _logical_and(view: View, x: Value, other: Value) -> Value:
    return view.make("and", _as_boolean(view, x), _as_boolean(view, other))


@rewrites("logical_or")
def _logical_or(view: View, x: Value, other: Value) -> Value:
    return view.make("or", _as_boolean(view, x), _as_boolean(view, other))


def _as_boolean(view: View, x: Value) -> Value:
    return x if x.op in BOOLEAN else view.make("ne", x, view.const(0))


def _binary_mask(view: View, terms: list[Value], constant: float) -> Value | None:
    """GPT-2's mask `w * b - 1e4 * (1 - b)`, in which b is 0 or 1."""
    if constant or len(terms) != 2:
        return None
    for scores, fill in (terms, terms[::-1]):
        found = _fill_outside(fill)
        rest = without(factors_of(scores), (found[0],)) if found else None
        binary = _is_binary(view, found[0]) if found and rest else False
        if found and rest and binary is not False:
            kept = view.make("ne", found[0], view.const(0))
            made = view.plain(KEEP, product(view, rest), kept, view.const(found[1]))
            return view.with_assumption(made, "" if binary else "assumes that the mask holds only 0 and 1")
    return None


_SAME_ENTRIES = frozenset({CAST, "kept", "bool", "to", "float", "float32", "unsqueeze", "view", "expand", "expand_as"})


def _is_binary(view: View, v: Value) -> bool | None:
    """Whether `v` holds only 0 and 1: True (proved), None (the text does not show it), or False (it may not)."""
    if v.op in BOOLEAN or v.op in ("ones", "zeros", "ones_like", "zeros_like"):
        return True
    facts = [known for o in view.originals(v) if (known := view.facts.known.get(o)) is not None]
    if any(k.form in ("lower", "upper") or k.dtype == "torch.bool" for k in facts):
        return True
    if v.op in ("tril", "triu", ITEM) or v.op in _SAME_ENTRIES:
        inner = _is_binary(view, v.inputs[0])
        return None if inner is False and not any(k.dtype for k in facts) else inner
    return False if any(k.dtype for k in facts) else None


def _fill_outside(v: Value) -> tuple[Value, float] | None:
    """(b, fill), if `v` is (1 - b) * fill; else None."""
    if v.op != "mul" or len(v.inputs) != 2 or v.inputs[0].op != "add":
        return None
    number, opposite = literal(v.inputs[1]), v.inputs[0].inputs
    if number is None or number > SMALLEST_FILL or len(opposite) != 2 or literal(opposite[1]) != 1:
        return None
    b = opposite[0]
    return (b.inputs[0], number) if b.op == "mul" and len(b.inputs) == 2 and literal(b.inputs[1]) == -1 else None


def _scale_masked_scores(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Move a positive factor from masked scores to the scores."""
    masked = next((f for f in factors if _is_masked_scores(f)), None)
    rest = without(factors, (masked,)) if masked is not None else None
    if masked is None or not rest and constant == 1 or constant <= 0:
        return None
    if any(view.number(f) is False for f in rest or ()):
        return None
    if masked.op == CHOICE:  # an optional mask
        sides = (product(view, [side, *(rest or ()), view.const(constant)]) for side in masked.inputs[1:])
        return [view.make(CHOICE, masked.inputs[0], *sides)], 1
    fill = fill_of(view, masked.inputs[2])
    scaled_fill = _scaled_fill(view, masked.inputs[2], rest or (), constant) if is_negligible(fill) else None
    if scaled_fill is None:
        return None
    scaled = product(view, [masked.inputs[0], *(rest or ()), view.const(constant)])
    kept = view.plain(KEEP, scaled, masked.inputs[1], scaled_fill)
    if not all(map(view.number, rest or ())):
        return [view.with_assumption(kept, "assumes that the scale is a positive number")], 1
    positive = all(_is_positive(view, f) for f in rest or ())
    return [kept if positive else view.with_assumption(kept, "assumes that the scale is positive")], 1


def _scaled_fill(view: View, fill: Value, rest: Sequence[Value], constant: float) -> Value | None:
    """The fill times the factor; None if the product may be too high to be a fill. -inf does not change."""
    number = literal(fill)
    if number == -math.inf:
        return fill
    scaled = product(view, [fill, *rest, view.const(constant)])
    return scaled if fill_of(view, scaled) is not None else fill if number is None or rest else None


def _is_masked_scores(v: Value) -> bool:
    """Whether `v` is masked scores, at least in one branch."""
    return any(side.op == KEEP for side in sides_of(v))


def _is_positive(view: View, v: Value) -> bool:
    """Whether a number is proved to be positive."""
    if any(known.positive for o in view.originals(v) if (known := view.facts.known.get(o)) is not None):
        return True
    if v.op == "reciprocal":
        return _is_positive(view, v.inputs[0])
    if v.op in ("pow", "number_pow") and (exponent := literal(v.inputs[1])) is not None and exponent % 1:
        return True  # such as the root of a size
    return v.op == "number_sqrt" or (literal(v) or 0) > 0


def fill_of(view: View, v: Value) -> float | None:
    """The fill of a mask: -inf, a low number, or nan for the lowest number of a dtype; None if `v` is no fill."""
    if v.op == CAST or v.op == "tensor":
        return fill_of(view, v.inputs[0])
    if v.op == ATTRIBUTE and v.data == "min" and v.inputs[0].op == "finfo":
        return math.nan
    if v.op == "mul" and len(v.inputs) == 2 and v.inputs[0].op == "ones_like":
        return fill_of(view, v.inputs[1])
    if v.op == "mul" and len(v.inputs) == 2 and literal(v.inputs[1]) is not None:
        return _part_of_minimum(v.inputs[0], literal(v.inputs[1]) or 0.0)
    if v.op in ("full_like", "full") and len(v.inputs) > 1:
        return fill_of(view, v.inputs[1])
    number = literal(v)
    return number if number is not None and number <= SMALLEST_FILL else None


def _part_of_minimum(v: Value, factor: float) -> float | None:
    """nan, if `v * factor` is a low number such as -finfo.max or finfo.min / 2; else None."""
    if v.op != ATTRIBUTE or v.inputs[0].op != "finfo":
        return None
    sign = {"max": -1, "min": 1}.get(str(v.data), 0)
    return math.nan if 1e-3 < factor * sign <= 1 else None


SUM_RECOGNISERS.insert(0, _binary_mask)
PRODUCT_RECOGNISERS.append(_scale_masked_scores)
