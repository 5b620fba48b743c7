"""The canonical form of choices: comparisons with None, and values that differ by branch.

This file does not know what the values are.
"""

from __future__ import annotations

from functools import partial

from autofuse.canonical.arithmetic import product, without
from autofuse.canonical.view import CAST, LEAF, PERMUTE, View, rewrites
from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CHOICE,
    CONST,
    IS_NONE,
    ITEM,
    NOT,
    SLICE,
    TUPLE,
    Value,
    is_const,
    sides_of,
)
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import OPS

_SAME_IN_BOTH = frozenset(
    {"softmax", "dropout", CAST, PERMUTE}
)  # applied in both branches, they move behind the choice


@rewrites(CHOICE)
def _choice(view: View, test: Value, yes: Value, no: Value) -> Value | None:
    if yes is no:
        return yes
    if test.op == NOT:
        return view.make(CHOICE, test.inputs[0], no, yes)
    if test.op == CONST:
        return no if test.data in (False, 0, None, "") else yes
    if yes.op == "dropout" and yes.inputs[0] is no and is_const(yes.inputs[2], True):
        return view.fresh("dropout", no, yes.inputs[1], test)  # if self.training: w = F.dropout(w, p)
    if yes.op == "dropout" and yes.inputs[0] is no and test.op == ATTRIBUTE and test.data == "training":
        return view.fresh("dropout", no, yes.inputs[1], view.make("and", test, yes.inputs[2]))  # w = self.drop(w)
    for dropped, plain in ((yes, no), (no, yes)):
        if dropped.op == "dropout" and dropped.inputs[0] is plain:
            return _dropout_in_one_branch(view, test, dropped, dropped is yes)
    if yes.op == no.op and yes.op in _SAME_IN_BOTH and (yes.inputs[1:], yes.data) == (no.inputs[1:], no.data):
        make = view.fresh if yes.op == "dropout" else partial(view.plain, data=yes.data)
        return make(yes.op, view.make(CHOICE, test, yes.inputs[0], no.inputs[0]), *yes.inputs[1:])
    for scaled, plain in ((yes, no), (no, yes)):
        if (factors := _scale_of(view, test, scaled, plain)) is not None:
            one = view.const(1.0)
            scale = (product(view, factors), one) if scaled is yes else (one, product(view, factors))
            return product(view, (plain, view.make(CHOICE, test, *scale)))
    inner_yes, inner_no = _known_side(test, yes, True), _known_side(test, no, False)
    if inner_yes is not None or inner_no is not None:
        return view.make(CHOICE, test, inner_yes or yes, inner_no or no)
    return None


def _dropout_in_one_branch(view: View, test: Value, dropped: Value, truth: bool) -> Value:
    """The dropout of `if self.drop is not None: w = self.drop(w)`. It is active if the test holds in training."""
    x, p, training = dropped.inputs
    known = _known_side(test, p, truth)

    def where(value: Value, other: Value) -> Value:
        return view.make(CHOICE, test, value, other) if truth else view.make(CHOICE, test, other, value)

    p = p if known is None else where(known, view.const(0.0))
    return view.fresh("dropout", x, p, where(training, view.const(False)))


def _scale_of(view: View, test: Value, scaled: Value, plain: Value) -> list[Value] | None:
    """The scale that only one branch applies to scores: `if self.scaled: scores = scores / math.sqrt(d)`."""
    if scaled.op != "mul" or not _is_matrix_product(plain):
        return None
    own = list(plain.inputs) if plain.op == "mul" else [plain]
    factors = without(scaled.inputs, own)
    if not factors or any(view.number(f) is False for f in factors):
        return None
    return factors if test.op != IS_NONE or all(map(view.number, factors)) else None


def _is_matrix_product(v: Value) -> bool:
    while v.op in ("mul", CAST, PERMUTE) and v.inputs:
        v = v.inputs[0]
    return v.op == "matmul"


def _known_side(test: Value, side: Value, truth: bool) -> Value | None:
    """The side of the choice `side` that applies if `test` is `truth`; None if its test is another one."""
    if side.op != CHOICE:
        return None
    inner_test = side.inputs[0]
    if truth and inner_test.op == IS_NONE and inner_test.inputs[0] is test:  # a true value is not None
        return side.inputs[2]
    if inner_test is not test:
        return None
    return side.inputs[1] if truth else side.inputs[2]


@rewrites(NOT)
def _not(view: View, x: Value) -> Value | None:
    if x.op == NOT:
        return x.inputs[0]
    return view.const(x.data in (False, 0, None, "")) if x.op == CONST else None


@rewrites(IS_NONE)
def _is_none(view: View, x: Value) -> Value | None:
    """`x = x if x is None else f(x)` is None exactly if x was None before."""
    if (
        x.op == CHOICE
        and x.inputs[0].op == IS_NONE
        and x.inputs[1] is x.inputs[0].inputs[0]
        and never_none(x.inputs[2], x.inputs[1])
    ):
        return x.inputs[0]
    return view.const(x.data is None) if x.op == CONST else view.const(False) if x.op in OPS else None


def never_none(v: Value, but: Value | None = None) -> bool:
    """Whether `v` cannot be None, because an operation returns it. `but` is a value that is known not to be None."""
    return all(_never_none(side, but) for side in sides_of(v))


def _never_none(v: Value, but: Value | None) -> bool:
    if v is but or v.op in OPS or v.op in ("cast", "permute", "keep", "kept", "add", "mul"):
        return True
    if v.op == LEAF and isinstance(v.data, Value):
        return _returns_tensor(v.data)
    return v.op == ITEM and _has_slice(v.inputs[1])


def _returns_tensor(v: Value) -> bool:
    """Whether the value `v` of the program is the result of a function of torch or einops."""
    name = v.data[0] if v.op == CALL and isinstance(v.data, tuple) else ""
    return name in HARMLESS and str(name).startswith(("torch.", "einops."))


def _has_slice(index: Value) -> bool:
    """Whether an index slices or adds a dimension. Then `x` is a tensor, and `x[:, None]` cannot be None."""
    return index.op == SLICE or index.op == TUPLE and any(i.op == SLICE or is_const(i, None) for i in index.inputs)
