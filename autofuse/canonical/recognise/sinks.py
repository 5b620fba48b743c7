"""Recognises softmax with a sink: one more score in each row, whose weight is dropped.

Introduces sink_softmax(scores, sinks), over the last dimension: softmax(cat(scores, sinks))[..., :-1]. This file knows
no mask.
"""

from __future__ import annotations

from autofuse.canonical.shapes import elements, from_end
from autofuse.canonical.sizes import size_query
from autofuse.canonical.view import CAST, View, literal, rewrites
from autofuse.ir.graph import ITEM, SLICE, TUPLE, Value, is_const, is_full_slice

SINK_SOFTMAX = "sink_softmax"


@rewrites(ITEM)
def _without_sink(view: View, weights: Value, index: Value) -> Value | None:
    """softmax(cat((scores, sinks)))[..., :-1], or with the sinks first, and with casts or dropout in between."""
    cut = _last_slice(index)
    if cut is None:
        return None
    if weights.op in (CAST, "dropout"):
        inner = _without_sink(view, weights.inputs[0], index)
        return None if inner is None else view.plain(weights.op, inner, *weights.inputs[1:], data=weights.data)
    if weights.op != "softmax" or not is_const(weights.inputs[1], -1):
        return None
    joined, *casts = weights.inputs[0], *_casts_around(weights.inputs[0])
    while joined.op == CAST:
        joined = joined.inputs[0]
    parts = elements(joined.inputs[0]) if joined.op == "cat" and joined.inputs[0].op == TUPLE else ()
    if len(parts) != 2 or not _is_last(view, joined.inputs[1], parts):
        return None
    scores, sinks = parts if _keeps_first(view, cut, parts[0]) else parts[::-1]
    if scores is parts[1] and not (_drops_one(cut) and _is_one_column(view, sinks)):
        return None
    for cast in casts:
        scores = view.plain(CAST, scores, *cast.inputs[1:], data=cast.data)
    return view.plain(SINK_SOFTMAX, scores, sinks)


def _casts_around(x: Value) -> list[Value]:
    """The casts around a value, the innermost first."""
    found = []
    while x.op == CAST:
        found.append(x)
        x = x.inputs[0]
    return found[::-1]


def _last_slice(index: Value) -> Value | None:
    """The slice of the last dimension, if the index takes the other dimensions entirely; else None."""
    if index.op != TUPLE or len(index.inputs) < 2:
        return None
    *others, last = index.inputs
    whole = all(is_const(i, ...) or is_full_slice(i) for i in others)
    # Scores usually have four dimensions, so `[:, :, :, :-1]` counts as an index of the last one.
    known = any(is_const(i, ...) for i in others) or len(others) == 3
    return last if whole and known and last.op == SLICE and is_const(last.inputs[2], None, 1) else None


def _keeps_first(view: View, cut: Value, scores: Value) -> bool:
    """Whether a slice takes all entries but the last: `:-1` or `: scores.size(-1)`."""
    start, end = cut.inputs[:2]
    if not is_const(start, None, 0):
        return False
    size = size_query(end)
    if size is None or size[0] is not scores or size[1] is None:
        return literal(end) == -1
    rank = view.rank(scores)
    return size[1] == -1 or rank is not None and size[1] == rank - 1


def _drops_one(cut: Value) -> bool:
    return literal(cut.inputs[0]) == 1 and is_const(cut.inputs[1], None)


def _is_last(view: View, dim: Value, parts: tuple[Value, ...]) -> bool:
    return any(from_end(view, part, dim) == -1 for part in parts)


def _is_one_column(view: View, sinks: Value) -> bool:
    """Whether the text shows that the last size is 1."""
    while sinks.op in (CAST, "expand") and not (sinks.op == "expand" and _ends_in_one(sinks)):
        sinks = sinks.inputs[0]
    if sinks.op == "unsqueeze":
        return from_end(view, sinks, sinks.inputs[1]) == -1
    return sinks.op in ("view", "reshape", "expand", "zeros", "full") and _ends_in_one(sinks)


def _ends_in_one(v: Value) -> bool:
    sizes = elements(v.inputs[1]) if len(v.inputs) == 2 and v.inputs[1].op == TUPLE else v.inputs[1:]
    return bool(sizes) and literal(sizes[-1]) == 1
