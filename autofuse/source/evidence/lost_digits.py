"""Does the code lose digits that the fused operation keeps?

`mean(x ** 2) - mean(x) ** 2` is the variance in exact arithmetic. In floating point it is another number where the mean
is large against the deviation: then both terms agree in all the digits that they have.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.dtypes import CASTS
from autofuse.ir.graph import Value, is_const
from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing


def digits_are_kept(claim: Claim) -> Iterator[Missing | Fails]:
    """No variance is a difference of two numbers that may be large."""
    if any(_is_difference_of_squares(v) for v in claim.site.doomed.values):
        yield Missing("assumes that the mean is not large against the deviation: E[x^2] - E[x]^2 loses digits then")


def _is_difference_of_squares(v: Value) -> bool:
    """mean(x ** 2) - mean(x) ** 2."""
    if v.op != "sub":
        return False
    squares, square = (_bare(i) for i in v.inputs[:2])
    return squares.op in ("mean", "sum", "div", "mul") and square.op in _SQUARES and _holds_mean(square)


_SQUARES = frozenset({"pow", "square", "mul"})


def _holds_mean(square: Value) -> bool:
    if square.op == "pow" and not is_const(square.inputs[1], 2, 2.0):
        return False
    return any(_bare(i).op in ("mean", "div", "item") for i in square.inputs)


def _bare(v: Value) -> Value:
    while v.op in CASTS or v.op in ("clamp", "relu", "unsqueeze", "view"):
        v = v.inputs[0]
    return v
