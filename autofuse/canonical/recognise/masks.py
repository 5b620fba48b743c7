"""Every way of dropping scores as one operation: keep(scores, what is kept, what fills the rest).

Knows fills and boolean masks; what a whole chain of masks means together is read by autofuse/match/masks.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.canonical.arithmetic import RECOGNISED_IN_PRODUCTS, RECOGNISED_IN_SUMS, factors_of, product, without
from autofuse.canonical.view import CAST, KEEP, View, bare, literal, rewrites
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, TUPLE, Value, is_const, is_full_slice, sides_of

_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
BOOLEAN = frozenset({*_OPPOSITE, "invert", "and", "or", "bool", "kept"})
SMALLEST_FILL = -1e3  # exp(-1e3) is 0 in every floating dtype: a fill this low leaves no weight beside a score near 0
NEGLIGIBLE_FILL = -1e8  # numbers of this size lie 8 apart in float32: no score that means anything comes near


def is_negligible(fill: float | None) -> bool:
    """Whether a fill (see fill_of) is so low that what a mask is may be told without regard to scores."""
    return fill is not None and not fill > NEGLIGIBLE_FILL  # nan, the lowest number, is


@rewrites("masked_fill")
def _masked_fill(view: View, x: Value, dropped: Value, fill: Value) -> Value | None:
    if fill_of(view, fill) is None:
        return None
    return view.plain(KEEP, x, kept(view, view.make("invert", dropped)), _number_of(fill, x))


@rewrites("masked_at")
def _masked_at(view: View, x: Value, index: Value, fill: Value) -> Value | None:
    """`scores[mask] = fill`: a boolean index takes the dimensions of the scores in order, from where it stands."""
    *front, dropped = index.inputs if index.op == TUPLE else (index,)
    boolean = _is_boolean(dropped)
    if fill_of(view, fill) is None or boolean is False or not all(is_const(f, ...) or is_full_slice(f) for f in front):
        return None
    places, rank, taken = len(front), view.rank(x), view.rank(dropped)
    if any(is_const(f, ...) for f in front):
        fits: bool | None = places == 1
    else:
        fits = None if rank is None or taken is None else rank - taken == places
    if fits is False:
        return None
    assumed = "" if fits else "assumes that the mask has all dimensions of what it is an index of"
    assumed = assumed if boolean else "; ".join(filter(None, ("assumes that the index is a boolean mask", assumed)))
    made = view.plain(KEEP, x, kept(view, view.make("invert", dropped)), _number_of(fill, x))
    return view.assuming(made, assumed)


def _is_boolean(v: Value) -> bool | None:
    """Whether an index holds truth values: True, False (as far as can be seen it does not), or None for `~x`."""
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
        return None  # a mask of two numbers, not masked scores
    if fill_of(view, other) is not None:
        return view.plain(KEEP, x, kept(view, test), _number_of(other, x))
    if fill_of(view, x) is not None:
        return view.plain(KEEP, other, kept(view, view.make("invert", test)), _number_of(x, other))
    return None


def kept(view: View, test: Value) -> Value:
    """`test`, known to be a boolean tensor."""
    test = unexpanded(test)
    return test if test.op in BOOLEAN else view.plain("kept", test)


@rewrites("expand")
def _expand(view: View, x: Value, shape: Value) -> Value | None:
    """`mask.expand(scores.shape)` is `mask.expand_as(scores)`."""
    read = shape.inputs[0] if len(shape.inputs) == 1 else shape
    whole = read.op == ATTRIBUTE and read.data == "shape" or read.op == "size" and is_const(read.inputs[1], None)
    return view.plain("expand_as", x, read.inputs[0]) if whole else None


def unexpanded(mask: Value) -> Value:
    """`mask` as it was before it was expanded to the shape of the scores, to which it is broadcast in any case."""
    return mask.inputs[0] if mask.op == "expand_as" else mask


def _number_of(fill: Value, scores: Value) -> Value:
    """The number that `fill` is full of, where it is a tensor: torch.full_like(scores, -1e9).

    What it is like is broadcast with the scores, as a number is.
    """
    fill = bare(fill)
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
    """`~x` of a boolean; of a number it asks whether it is zero."""
    return view.make("invert", x) if x.op in BOOLEAN else view.make("eq", x, view.const(0))


@rewrites("logical_and")
def _logical_and(view: View, x: Value, other: Value) -> Value:
    return view.make("and", _truth(view, x), _truth(view, other))


@rewrites("logical_or")
def _logical_or(view: View, x: Value, other: Value) -> Value:
    return view.make("or", _truth(view, x), _truth(view, other))


def _truth(view: View, x: Value) -> Value:
    return x if x.op in BOOLEAN else view.make("ne", x, view.const(0))


def _product_with_mask(view: View, terms: list[Value], constant: float) -> Value | None:
    """GPT-2's `w * b - 1e4 * (1 - b)`, b being 0 or 1."""
    if constant or len(terms) != 2:
        return None
    for scores, fill in (terms, terms[::-1]):
        found = _fill_outside(fill)
        rest = without(factors_of(scores), (found[0],)) if found else None
        binary = _is_binary(view, found[0]) if found and rest else False
        if found and rest and binary is not False:
            kept = view.make("ne", found[0], view.const(0))
            made = view.plain(KEEP, product(view, rest), kept, view.const(found[1]))
            return view.assuming(made, "" if binary else "assumes that the mask holds 0 and 1 alone")
    return None


_SAME_ENTRIES = frozenset({CAST, "kept", "bool", "to", "float", "float32", "unsqueeze", "view", "expand", "expand_as"})


def _is_binary(view: View, v: Value) -> bool | None:
    """Whether `v` holds 0 and 1 alone: True by proof, None where the text does not say, False where nobody knows."""
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
    """(b, fill) where `v` is (1 - b) * fill."""
    if v.op != "mul" or len(v.inputs) != 2 or v.inputs[0].op != "add":
        return None
    number, opposite = literal(v.inputs[1]), v.inputs[0].inputs
    if number is None or number > SMALLEST_FILL or len(opposite) != 2 or literal(opposite[1]) != 1:
        return None
    b = opposite[0]
    return (b.inputs[0], number) if b.op == "mul" and len(b.inputs) == 2 and literal(b.inputs[1]) == -1 else None


def _scaled_after(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Masked scores times a number known to be positive are scaled scores, masked."""
    masked = next((f for f in factors if _masked_in_parts(f)), None)
    rest = without(factors, (masked,)) if masked is not None else None
    if masked is None or not rest and constant == 1 or constant <= 0:
        return None
    if any(view.number(f) is False for f in rest or ()):
        return None
    if masked.op == CHOICE:  # a mask that may not be given
        sides = (product(view, [side, *(rest or ()), view.const(constant)]) for side in masked.inputs[1:])
        return [view.make(CHOICE, masked.inputs[0], *sides)], 1
    fill = fill_of(view, masked.inputs[2])
    scaled_fill = _scaled_fill(view, masked.inputs[2], rest or (), constant) if is_negligible(fill) else None
    if scaled_fill is None:
        return None
    scaled = product(view, [masked.inputs[0], *(rest or ()), view.const(constant)])
    kept = view.plain(KEEP, scaled, masked.inputs[1], scaled_fill)
    if not all(map(view.number, rest or ())):
        return [view.assuming(kept, "assumes that the scale is a positive number")], 1
    positive = all(_positive(view, f) for f in rest or ())
    return [kept if positive else view.assuming(kept, "assumes that the scale is positive")], 1


def _scaled_fill(view: View, fill: Value, rest: Sequence[Value], constant: float) -> Value | None:
    """What a fill becomes with the scores; None where that may be no fill any more. -inf stays what it is."""
    number = literal(fill)
    if number == -math.inf:
        return fill
    scaled = product(view, [fill, *rest, view.const(constant)])
    return scaled if fill_of(view, scaled) is not None else fill if number is None or rest else None


def _masked_in_parts(v: Value) -> bool:
    """Whether `v` is masked scores, in one arm of a branch at least."""
    return any(side.op == KEEP for side in sides_of(v))


def _positive(view: View, v: Value) -> bool:
    """Whether a number is positive whatever it is computed from."""
    if any(known.positive for o in view.originals(v) if (known := view.facts.known.get(o)) is not None):
        return True
    if v.op == "reciprocal":
        return _positive(view, v.inputs[0])
    if v.op in ("pow", "number_pow") and (exponent := literal(v.inputs[1])) is not None and exponent % 1:
        return True  # the root of a size
    return v.op == "number_sqrt" or (literal(v) or 0) > 0


def fill_of(view: View, v: Value) -> float | None:
    """What a mask fills with: -inf, a low number, nan for the minimum of some dtype; None if `v` is no fill."""
    if v.op == CAST or v.op == "tensor":
        return fill_of(view, v.inputs[0])
    if v.op == ATTRIBUTE and v.data == "min" and v.inputs[0].op == "finfo":
        return math.nan
    if v.op == "mul" and len(v.inputs) == 2 and v.inputs[0].op == "ones_like":
        return fill_of(view, v.inputs[1])
    if v.op == "mul" and len(v.inputs) == 2 and literal(v.inputs[1]) is not None:
        return _share_of_minimum(v.inputs[0], literal(v.inputs[1]) or 0.0)
    if v.op in ("full_like", "full") and len(v.inputs) > 1:
        return fill_of(view, v.inputs[1])
    number = literal(v)
    return number if number is not None and number <= SMALLEST_FILL else None


def _share_of_minimum(v: Value, factor: float) -> float | None:
    """-finfo.max, or finfo.min / 2."""
    if v.op != ATTRIBUTE or v.inputs[0].op != "finfo":
        return None
    wanted = {"max": -1, "min": 1}.get(str(v.data), 0)
    return math.nan if 1e-3 < factor * wanted <= 1 else None


RECOGNISED_IN_SUMS.insert(0, _product_with_mask)
RECOGNISED_IN_PRODUCTS.append(_scaled_after)
