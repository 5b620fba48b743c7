"""Scores that are viewed as (batch, heads, ...) for a mask, and viewed as (batch * heads, ...) again after it.

The two views only change the shape to which the mask in between is broadcast. This file knows the shapes of views. It
knows no mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofuse.canonical.arithmetic import PRODUCT_RECOGNISERS, product
from autofuse.canonical.shapes import elements
from autofuse.canonical.sizes import lengths
from autofuse.canonical.view import CAST, KEEP, PERMUTE, View, rewrites, strip_casts
from autofuse.ir.graph import CHOICE, TUPLE, Value, ancestors_by, is_const

_WEIGHTS = ("softmax", "dropout")
_SAME_SHAPE = "assumes that the scores have the same shape before and after they are reshaped for the mask"


@rewrites("view")
def _view(view: View, x: Value, shape: Value) -> Value | None:
    """Move the view that joins dimensions from the probabilities to the scores. It keeps the last dimension."""
    if strip_casts(x).op not in _WEIGHTS:
        return None
    if not any(_same_last(view, split, shape, 1) for split in splits(_scores_of_probabilities(x))):
        return None
    return _view_of_scores(view, x, shape)


def _view_of_scores(view: View, x: Value, shape: Value) -> Value:
    if strip_casts(x).op not in _WEIGHTS:
        return view.plain("view", x, shape)
    make = view.fresh if x.op == "dropout" else view.plain  # each dropout draws its own numbers
    return make(x.op, _view_of_scores(view, x.inputs[0], shape), *x.inputs[1:])


def _scores_of_probabilities(x: Value) -> Value:
    """`x` without the softmax, dropout and casts that are applied to the scores."""
    while strip_casts(x).op in _WEIGHTS:
        x = x.inputs[0]
    return x


def splits(x: Value) -> Iterator[Value]:
    """Yield the views inside `x` to which masks were applied."""
    yield from (v for v in ancestors_by(x, _mask_operands) if v.op == "view")


def _mask_operands(x: Value) -> tuple[Value, ...]:
    if x.op not in ("add", CAST, KEEP, CHOICE):
        return ()
    return x.inputs[:1] if x.op == KEEP else x.inputs[1:] if x.op == CHOICE else x.inputs


def folds_back(view: View, split: Value, joined: Value) -> str | None:
    """Whether the view `joined` restores the shape that the view `split` has changed.

    Returns:
        The assumption under which it does; "" if it always does; None if it does not.
    """
    own, back = lengths(view, split.inputs[0]), lengths(view, joined)
    if own is not None and own == back and None not in own:
        return ""
    if len(elements(split.inputs[1])) < 3 or not _same_last(view, split, joined.inputs[1], 2):
        return _SAME_SHAPE if _is_product(split.inputs[0]) and _joins_neighbours(view, split, joined) else None
    rank = view.rank(split.inputs[0])
    if rank is None and _is_product(split.inputs[0]):
        return _SAME_SHAPE
    return "" if rank == len(elements(joined.inputs[1])) else None


def _joins_neighbours(view: View, split: Value, joined: Value) -> bool:
    """Whether `joined` joins neighbouring dimensions of `split`: (b, h, w, h, w), then (b, h * w, h * w)."""
    parts, wholes = list(elements(split.inputs[1])), elements(joined.inputs[1])
    for whole in wholes:
        count = next((n for n in range(1, len(parts) + 1) if product(view, parts[:n]) is whole), 0)
        if not count:
            return False
        del parts[:count]
    return not parts and len(wholes) > 1


def expanded_and_folded(view: View, mask: Value, split: Value, joined: Value) -> Value | None:
    """Expand `mask` to the shape of `split` and view it in the shape of `joined`; None if the shape is unknown."""
    sizes = list(elements(split.inputs[1]))
    if is_const(sizes[0], -1):
        first = _first_size(view, split, joined)
        if first is None:
            return None
        sizes[0] = first
    if any(is_const(s, -1) for s in sizes[:-1]):
        return None
    return view.plain("refold", mask, view.plain(TUPLE, *sizes), view.plain(TUPLE, *elements(joined.inputs[1])))


def _first_size(view: View, split: Value, joined: Value) -> Value | None:
    """The size that -1 stands for, if it is the first size of `split`, which splits the first dimension in two."""
    sizes, back = elements(split.inputs[1]), elements(joined.inputs[1])
    query = _query_of(split.inputs[0])
    if query is None or len(sizes) != len(back) + 1 or sizes[2:] != back[1:]:
        return None
    whole = view.plain("size", query, view.const(0))
    return view.plain("floordiv", whole, sizes[1])


def _query_of(scores: Value) -> Value | None:
    """The left operand of the matrix product in `scores`, which has the same first dimension; None if there is none."""
    while scores.op in ("mul", "add", CAST):
        scores = next((i for i in scores.inputs if _is_product(i)), scores.inputs[0])
    return scores.inputs[0] if scores.op == "matmul" else None


def _is_product(x: Value) -> bool:
    return any(v.op == "matmul" for v in ancestors_by(x, _scaled_or_biased))


def _scaled_or_biased(x: Value) -> tuple[Value, ...]:
    return x.inputs if x.op in ("mul", "add", CAST, PERMUTE) else ()


def _same_last(view: View, split: Value, shape: Value, count: int) -> bool:
    """Whether a view and a shape have the same last `count` sizes. If both have -1 there, their other sizes decide."""
    first, second = elements(split.inputs[1]), elements(shape)
    if min(len(first), len(second)) <= count or first[-count:] != second[-count:]:
        return False
    if not any(is_const(s, -1) for s in first[-count:]):
        return True
    return product(view, first[:-1]) is product(view, second[:-1]) and is_const(first[-1], -1)


def _scaled_view(view: View, factors: list[Value], constant: float) -> tuple[list[Value], float] | None:
    """Move a factor from a view of scores to the scores."""
    tensors = [f for f in factors if not view.number(f)]
    if len(tensors) != 1 or tensors[0].op != "view" or not _is_product(tensors[0].inputs[0]):
        return None
    if len(factors) == 1 and math.isclose(constant, 1):  # no factor to move: the result would be the same product
        return None
    numbers = [f for f in factors if f is not tensors[0]]
    x, shape = tensors[0].inputs
    return [view.plain("view", product(view, [x, *numbers, view.const(constant)]), shape)], 1


PRODUCT_RECOGNISERS.append(_scaled_view)
