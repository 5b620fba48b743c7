"""Reads every way of masking scores as one Mask: the kept scores, the fill of the others, and the added bias.

A Mask records a finite fill, because it differs from -inf in a row that keeps nothing: the program gives all its
entries the same weight. mask_kinds.py proves the kind of a mask. This file sees canonical values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from autofuse.canonical import CAST, KEEP, LEAF, View, fill_of
from autofuse.canonical.arithmetic import total, without
from autofuse.canonical.mask_folds import expanded_and_folded, folds_back, splits
from autofuse.canonical.recognise.masks import BOOLEAN, NEGLIGIBLE_FILL, as_boolean_mask, without_expand
from autofuse.canonical.recognise.precision import half_dtype_name, known_dtypes
from autofuse.canonical.view import memoize
from autofuse.ir.graph import CHOICE, CONST, SYNTAX, Value, ancestors_by, is_const, sides_of


@dataclass(frozen=True)
class Mask:
    """A mask of scores.

    Attributes:
        value: the mask; None if nothing is masked.
        boolean: whether `value` is boolean (True is kept). Otherwise it is added to the scores.
        fill: the number that replaces the scores that a boolean mask drops; None for -inf.
        approximate: how results may differ from the program's, or the assumption under which they do not; "" if they
            are the same.
        kept: for an added mask, a boolean mask that is False where a finite fill has overwritten the score, so that
            nothing is left of the score; None if the mask is added to all scores.
    """

    value: Value | None = None
    boolean: bool = False
    fill: Value | None = None
    approximate: str = ""
    kept: Value | None = None


def masked_forms(view: View, value: Value) -> Iterator[tuple[Value, Mask]]:
    """Yield each reading of `value` as (scores, mask), the outermost scores first. Every mask masks something."""
    for scores in _possible_scores(view, value):
        mask = _mask_of(view, value, scores) if scores is not value else None
        if mask is not None and mask.value is not None:
            yield scores, mask


def _possible_scores(view: View, value: Value) -> Iterator[Value]:
    """Yield the values that may be the scores in `value`, each once, the outermost first."""
    return islice(ancestors_by(value, lambda v: _inner_scores(view, v)), _MOST_BASES)


def _inner_scores(view: View, value: Value) -> Iterator[Value]:
    """Yield the values from which `value` may be computed by masking."""
    if value.op in (CAST, KEEP):
        yield value.inputs[0]
    if value.op in ("add", CHOICE):
        yield from value.inputs[1:] if value.op == CHOICE else value.inputs
    if value.op == "view":
        for split in splits(value.inputs[0]):
            if folds_back(view, split, value) is not None:
                yield split.inputs[0]


@memoize
def _mask_of(view: View, value: Value, scores: Value) -> Mask | None:
    """The mask that turns `scores` into `value`, with the assumption of this reading; None if there is none."""
    found, assumed = _read_mask(view, value, scores), view.assumption(value)
    return replace(found, approximate=found.approximate or assumed) if found is not None and assumed else found


def _read_mask(view: View, value: Value, scores: Value) -> Mask | None:
    """The mask that turns `scores` into `value`; None if there is none."""
    if value is scores:
        return None if view.number(scores) else Mask()
    if value.op == CAST:
        return _mask_of(view, value.inputs[0], scores)
    if value.op == "add":
        return _mask_of_sum(view, value, scores)
    if value.op == KEEP:
        inner, fill = _mask_of(view, value.inputs[0], scores), fill_of(view, value.inputs[2])
        if inner is None or fill is None:
            return None
        found = _add_boolean(view, inner, value.inputs[1], value.inputs[2], fill)
        low = fill > NEGLIGIBLE_FILL and found is not None and not found.approximate
        return replace(found, approximate=_NEAR) if low and found is not None else found
    if value.op == CHOICE:
        yes, no = (_mask_of(view, side, scores) for side in value.inputs[1:])
        return None if yes is None or no is None else _mask_of_choice(view, value.inputs[0], yes, no)
    return _mask_of_reshaped(view, value, scores) if value.op == "view" else None


def _mask_of_reshaped(view: View, value: Value, scores: Value) -> Mask | None:
    """The mask of scores that are reshaped, masked, and reshaped back. It combines the masks before and in between."""
    for split in splits(value.inputs[0]):
        assumed = folds_back(view, split, value)
        own = _mask_of(view, split.inputs[0], scores) if assumed is not None else None
        inner = _mask_of(view, value.inputs[0], split) if own is not None else None
        if own is None or inner is None or inner.value is None:
            continue
        folded = _fold_mask(view, inner, split, value)
        whole = folded if own.value is None or folded is None else _combine_masks(view, own, folded)
        return replace(whole, approximate=whole.approximate or assumed or "") if whole is not None else None
    return None


def _fold_mask(view: View, mask: Mask, split: Value, joined: Value) -> Mask | None:
    """A mask of the scores with split dimensions, reshaped to a mask of the scores with joined dimensions."""
    assert mask.value is not None
    if mask.value.op == CHOICE and any(is_const(v, None) for v in mask.value.inputs[1:]):
        return _map_sides(view, mask, lambda m: m if m.value is None else _fold_mask(view, m, split, joined))
    value = expanded_and_folded(view, mask.value, split, joined)
    counted = None if mask.kept is None else expanded_and_folded(view, mask.kept, split, joined)
    if value is None or (mask.kept is None) != (counted is None):
        return None
    counted = None if counted is None else as_boolean_mask(view, counted)
    return Mask(
        as_boolean_mask(view, value) if mask.boolean else value, mask.boolean, mask.fill, mask.approximate, counted
    )


def _combine_masks(view: View, first: Mask, second: Mask) -> Mask | None:
    """The mask that applies `first`, then `second`."""
    assert second.value is not None
    if second.value.op == CHOICE and any(is_const(v, None) for v in second.value.inputs[1:]):
        return _map_sides(view, second, lambda side: first if side.value is None else _combine_masks(view, first, side))
    if second.kept is not None:
        return None
    if not second.boolean:
        return _add_bias(view, first, second.value)
    fill = second.fill or view.const(-math.inf)
    amount = fill_of(view, fill)
    return None if amount is None else _add_boolean(view, first, second.value, fill, amount)


def _mask_of_sum(view: View, value: Value, scores: Value) -> Mask | None:
    """The mask of a sum: one term holds the scores, and the other terms are a bias."""
    for term in value.inputs:
        inner = _mask_of(view, term, scores)
        if inner is not None:
            rest = without(value.inputs, (term,)) or []
            return _add_bias(view, inner, total(view, [without_expand(t) for t in rest]))
    return None


def _add_bias(view: View, mask: Mask, bias: Value) -> Mask | None:
    """The mask that applies `mask`, then adds `bias`; None if that is no mask."""
    if bias.op == CHOICE and any(is_const(side, 0, 0.0) for side in bias.inputs[1:]):  # 0 if mask is None else mask
        yes, no = (mask if is_const(i, 0, 0.0) else _add_bias(view, mask, i) for i in bias.inputs[1:])
        return None if yes is None or no is None else _mask_of_choice(view, bias.inputs[0], yes, no)
    if view.number(bias) or _adds_booleans(bias) or _adds_integers(view, bias):
        return None  # one number for all scores is no mask, and added booleans (0 and 1) keep and drop nothing
    if mask.value is None:
        return Mask(bias, approximate=_OTHER_DTYPE if _has_explicit_half_dtype(view, bias) else "")
    if mask.boolean and mask.value.op == CHOICE and not _is_boolean(mask.value):
        return _map_sides(view, mask, lambda side: _add_bias(view, side, bias))
    if mask.boolean and mask.fill is None:
        return Mask(view.plain("where", mask.value, bias, view.const(-math.inf)))
    if mask.boolean:
        dropped = bias if mask.fill is None else view.plain("add", bias, mask.fill)
        return Mask(view.plain("where", mask.value, bias, dropped), False, mask.fill, _UNEVEN, mask.value)
    if mask.value.op == CHOICE:
        return _map_sides(view, mask, lambda side: _add_bias(view, side, bias))
    return replace(mask, value=total(view, (mask.value, bias)))


def _adds_booleans(bias: Value) -> bool:
    """Whether a term of the bias is boolean (True adds 1), or is a number on one side of a branch."""
    if bias.op == "add":
        return any(map(_adds_booleans, bias.inputs))
    return any(side.op in BOOLEAN or _may_be_number(side) for side in sides_of(bias))


def _adds_integers(view: View, bias: Value) -> bool:
    """Whether a term of the bias is known to hold booleans or integers. A fused kernel reads these as what to keep."""
    if bias.op == "add":
        return any(_adds_integers(view, term) for term in bias.inputs)
    return any(not _is_of_floats(name) for side in sides_of(bias) for name in known_dtypes(view, side))


def _is_of_floats(dtype: str | None) -> bool:
    return str(dtype).startswith(("torch.float", "torch.bfloat"))


def _may_be_number(side: Value) -> bool:
    """Whether one side of a branch is a number, or an expression such as `mask or 0`."""
    side = side.data if side.op == LEAF and isinstance(side.data, Value) else side
    return side.op == CONST and side.data is not None or side.op == SYNTAX and str(side.data).startswith("BoolOp")


def _has_explicit_half_dtype(view: View, bias: Value) -> bool:
    """Whether the program casts the bias to float16 or bfloat16 by name, and its dtype is not known otherwise."""
    todo, seen = [bias], set[int]()
    while todo:
        v = todo.pop()
        if id(v) in seen or known_dtypes(view, v):
            continue
        seen.add(id(v))
        if v.op == CAST and any(half_dtype_name(o) for o in view.originals(v)):
            return True
        todo += v.inputs
    return False


def _add_boolean(view: View, mask: Mask, keep: Value, fill: Value, amount: float) -> Mask | None:
    """The mask that applies `mask`, then fills the scores where `keep` is False with `fill`, the number `amount`."""
    own = None if amount == -math.inf else fill
    if mask.value is None:
        return Mask(keep, boolean=True, fill=own)
    if mask.value.op == CHOICE and not _is_boolean(mask.value):
        return _map_sides(view, mask, lambda side: _add_boolean(view, side, keep, fill, amount))
    if not mask.boolean:
        if own is None:
            return replace(mask, value=view.plain("where", keep, mask.value, fill))
        one = own if mask.kept is None or mask.fill is own else None
        return Mask(
            view.plain("where", keep, mask.value, fill),
            False,
            one,
            _UNEVEN,
            _combine_boolean_masks(view, mask.kept, keep),
        )
    if mask.fill is own:
        return Mask(view.make("and", mask.value, keep), boolean=True, fill=own, approximate=mask.approximate)
    first = view.plain("where", mask.value, view.const(0.0), mask.fill or view.const(-math.inf))
    finite = _combine_boolean_masks(view, None if mask.fill is None else mask.value, None if own is None else keep)
    one = (own or mask.fill) if None in (own, mask.fill) else None
    return Mask(view.plain("where", keep, first, fill), False, one, "two masks fill with different numbers", finite)


def _combine_boolean_masks(view: View, first: Value | None, second: Value | None) -> Value | None:
    """The entries that two boolean masks both keep. None keeps all entries."""
    if first is None or second is None:
        return first or second
    return view.make("and", first, second)


_MOST_BASES = 64  # limits the search through nested sums and branches around the scores
_MOST_ALTERNATIVES = 32  # code that chooses between more masks would be unreadable
_NEAR = "assumes that no score is nearly as low as the fill value of the mask"
_OTHER_DTYPE = "assumes that the added mask has the dtype of the query"
_UNEVEN = "a row that is masked out entirely would not attend evenly"


def _mask_of_choice(view: View, test: Value, yes: Mask, no: Mask) -> Mask | None:
    """The mask that is `yes` if `test` holds and `no` otherwise; None if they cannot be one mask."""
    if yes.value is not None and no.value is not None and yes.boolean != no.boolean:
        added, bias = _as_bias(view, yes), _as_bias(view, no)  # such as a causal mask, and an optional added mask
        if added is None or bias is None:
            return None
        yes, no = added, bias
    sides = [m for m in (yes, no) if m.value is not None]
    if len({m.boolean for m in sides}) > 1 or len({m.fill for m in sides if m.boolean}) > 1:
        return None
    values = [m.value if m.value is not None else view.const(None) for m in (yes, no)]
    made = view.make(CHOICE, test, *values)
    if _count_alternatives(view, made) > _MOST_ALTERNATIVES:
        return None
    first = sides[0] if sides else Mask()
    why = next((m.approximate for m in sides if m.approximate), "")
    fill = first.fill if first.boolean else None  # only source text has choices, and its masks have no `kept`
    return Mask(None if is_const(made, None) else made, first.boolean, fill, why)


def _as_bias(view: View, mask: Mask) -> Mask | None:
    """The same mask in the form that is added to the scores."""
    if not mask.boolean or mask.value is None:
        return mask
    if mask.value.op == CHOICE and not _is_boolean(mask.value):  # one side is None
        return _map_sides(view, mask, lambda side: _as_bias(view, side))
    fill = mask.fill or view.const(-math.inf)
    value = view.plain("where", mask.value, view.const(0.0), fill)
    return Mask(value) if mask.fill is None else Mask(value, False, mask.fill, _UNEVEN, mask.value)


def _map_sides(view: View, mask: Mask, change: Callable[[Mask], Mask | None]) -> Mask | None:
    """Apply `change` to both sides of a mask that is a choice."""
    assert mask.value is not None
    test, *values = mask.value.inputs
    sides = [Mask(None if is_const(v, None) else v, mask.boolean and not is_const(v, None), mask.fill) for v in values]
    yes, no = (change(side) for side in sides)
    return None if yes is None or no is None else _mask_of_choice(view, test, yes, no)


@memoize
def _count_alternatives(view: View, v: Value) -> int:
    """The number of masks between which the rewritten code would choose. Each further optional mask doubles it."""
    if view.originals(v) or not v.inputs:
        return 1
    counts = [_count_alternatives(view, i) for i in v.inputs]
    return min(sum(counts[1:]) if v.op == CHOICE else math.prod(counts), _MOST_ALTERNATIVES + 1)


def _is_boolean(v: Value) -> bool:
    return all(side.op in BOOLEAN for side in sides_of(v))
