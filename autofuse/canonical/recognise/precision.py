"""Recognises changes of floating dtype: every spelling becomes a CAST, which only rounds.

This file knows which calls only change precision. A match may cross a cast; autofuse/match/matcher.py decides what that
means for the result.
"""

from __future__ import annotations

from collections.abc import Iterable

from autofuse.canonical.view import CAST, PERMUTE, View, order_of, rewrites, strip_casts
from autofuse.ir.graph import ATTRIBUTE, Value, is_const

_FLOATING = frozenset({"float32", "float16", "bfloat16", "float64", "float", "half", "double"})

_HALVES = {"half": "torch.float16", "float16": "torch.float16", "bfloat16": "torch.bfloat16"}


@rewrites("float", "double", "type_as", "half", "bfloat16")
def _cast(view: View, x: Value, *like: Value) -> Value:
    return view.make(CAST, x)


@rewrites("to")
def _to(view: View, x: Value, target: Value, options: Value) -> Value | None:
    """`.to(dtype)` and `.to(other tensor)` are casts. `.to(device)` is not, because it moves the tensor."""
    targets = (*target.inputs, *options.inputs)
    if len(targets) == 1 and view.rank(targets[0]) is not None:
        return view.make(CAST, x)
    if len(targets) == 2 and [t.op for t in targets] == [ATTRIBUTE] * 2 and targets[0].inputs == targets[1].inputs:
        targets = tuple(t for t in targets if t.data != "device")  # dtype and device of one tensor, like x.type_as(y)
    return view.make(CAST, x) if targets and all(map(is_floating_dtype, targets)) else None


@rewrites(CAST)
def _cast_twice(view: View, x: Value) -> Value | None:
    if x.op == PERMUTE:
        return view.permuted(view.make(CAST, x.inputs[0]), order_of(x))
    if x.op == CAST or view.number(x):
        return x
    return None


def is_floating_dtype(v: Value) -> bool:
    """Whether `v` is a floating dtype: its name, or the dtype of another tensor, which is assumed to be floating."""
    if v.op == ATTRIBUTE:
        return v.data == "dtype" or v.data in _FLOATING
    return is_const(v, "float")


def names_dtype(view: View, original: Value) -> bool:
    """Whether a cast of the program is to a named dtype, such as `x.float()`, or to the dtype of probabilities."""
    if original.op in ("float", "double", "half", "bfloat16"):
        return True
    if original.op == "type_as":
        return _is_probabilities(view, original.inputs[1])
    targets = (*original.inputs[1].inputs, *original.inputs[2].inputs) if original.op == "to" else ()
    return any(
        t.data in _FLOATING or t.data == "dtype" and _is_probabilities(view, t.inputs[0])
        for t in targets
        if t.op == ATTRIBUTE
    )


def half_dtype_name(original: Value) -> str | None:
    """The half-precision dtype that a cast of the program names: "torch.bfloat16" for `x.to(torch.bfloat16)`."""
    targets = (*original.inputs[1].inputs, *original.inputs[2].inputs) if original.op == "to" else ()
    names = [original.op, *(t.data for t in targets if t.op == ATTRIBUTE)]
    return next((_HALVES[str(n)] for n in names if str(n) in _HALVES), None)


def _is_probabilities(view: View, v: Value) -> bool:
    return view.of(v).op in ("softmax", "dropout")


def keeps_dtype(view: View, made: Value, operands: Iterable[Value]) -> bool:
    """Whether the front end knows that `made` has the dtype that an operand has before its casts."""
    own = known_dtypes(view, made)
    return bool(own) and any(known_dtypes(view, strip_casts(v)) == own for v in operands)


def changes_dtype(view: View, v: Value) -> bool:
    """Whether `v` is a cast, unless the front end knows that it does not change the dtype."""
    own = known_dtypes(view, v)
    return v.op == CAST and not (own and own == known_dtypes(view, strip_casts(v)))


def known_dtypes(view: View, v: Value) -> set[str | None]:
    """The dtype of a value, as a set that is empty if the front end does not know it."""
    known = view.facts.known
    return {known[o].dtype for o in view.originals(v) if o in known} - {None}
