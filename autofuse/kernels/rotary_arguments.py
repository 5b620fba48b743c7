"""Rotary embeddings by kernels that take (batch, length, heads, width) and one pair of angles for each position.

Knows which operands of `autofuse.ops.rotary` can be brought to that, and that a rotation's gradient is the rotation the
other way; must not know whose kernel turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.requirements import first, without_gradient

Turn = Callable[[Tensor, Tensor, Tensor, bool], Tensor]  # (batch, length, heads, d), (length, d / 2) twice, interleaved


def turnable(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """Why such kernels do not take a call of `rotary`, as a sentence; "" where they do."""
    if any(t.dtype is not x.dtype or t.device != x.device for t in (cos, sin)):
        return "It takes angles in the dtype of x and on its device."
    if not cos.ndim or cos.shape != sin.shape or 2 * cos.shape[-1] != x.shape[-1]:
        return "It takes one angle a pair, (..., d / 2): that the two of a pair are equal cannot be known beforehand."
    if x.ndim != 4 or _lengths_place(x, cos) is None:
        return (
            "It takes x (batch, heads, length, d) or (batch, length, heads, d) and angles that differ by position only."
        )
    return first(without_gradient((cos, sin), "angles"))


def turned(turn: Turn, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """`x` turned by `turn`, in x's own layout and with a gradient that has gradients."""
    heads_first = _lengths_place(x, cos) == 2
    rows = x.transpose(1, 2) if heads_first else x
    half = cos.shape[-1]
    result: Tensor = _Turned.apply(turn, rows, cos.reshape(-1, half), sin.reshape(-1, half), interleaved)  # type: ignore[no-untyped-call]
    return result.transpose(1, 2) if heads_first else result


def _lengths_place(x: Tensor, cos: Tensor) -> int | None:
    """Which dimension of `x` the angles differ along; None where they differ along another as well, or along none."""
    sizes = (1,) * (4 - cos.ndim) + tuple(cos.shape[:-1])
    if len(sizes) != 3 or sizes[0] != 1:
        return None
    for place, other in ((2, 1), (1, 2)):
        if sizes[place] == x.shape[place] and sizes[other] == 1:
            return place
    return None


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, turn: Turn, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.turn, ctx.interleaved = turn, interleaved
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        back: Tensor = _Turned.apply(ctx.turn, gradient, cos, -sin, ctx.interleaved)  # type: ignore[no-untyped-call]
        return None, back, None, None, None
