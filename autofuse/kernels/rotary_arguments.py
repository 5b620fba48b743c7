"""Rotary embeddings with kernels that take (batch, length, heads, head_dim) and one pair of angles for each position.

The gradient of a rotation is the inverse rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.requirements import first_refusal, without_gradient

Rotation = Callable[
    [Tensor, Tensor, Tensor, bool], Tensor
]  # (batch, length, heads, d), (length, d / 2) twice, interleaved


def rotary_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    """The reason why such kernels do not support a call of `rotary`, as a sentence; "" if they do."""
    if any(t.dtype is not x.dtype or t.device != x.device for t in (cos, sin)):
        return "It needs angles in the dtype of x and on its device."
    if not cos.ndim or cos.shape != sin.shape or 2 * cos.shape[-1] != x.shape[-1]:
        return "It needs one angle for each pair, (..., d / 2). It cannot know that two angles of a pair are equal."
    if x.ndim != 4 or _length_dimension(x, cos) is None:
        return "It needs x (batch, heads, length, d) or (batch, length, heads, d); angles may depend on position only."
    return first_refusal(without_gradient((cos, sin), "angles"))


def rotate(rotation: Rotation, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """`x` rotated by `rotation`, in x's own layout. The gradient is differentiable."""
    heads_first = _length_dimension(x, cos) == 2
    rows = x.transpose(1, 2) if heads_first else x
    half = cos.shape[-1]
    result: Tensor = _Rotate.apply(rotation, rows, cos.reshape(-1, half), sin.reshape(-1, half), interleaved)  # type: ignore[no-untyped-call]
    return result.transpose(1, 2) if heads_first else result


def _length_dimension(x: Tensor, cos: Tensor) -> int | None:
    """The dimension of `x` along which the angles differ; None if they differ along another one too, or along none."""
    sizes = (1,) * (4 - cos.ndim) + tuple(cos.shape[:-1])
    if len(sizes) != 3 or sizes[0] != 1:
        return None
    for place, other in ((2, 1), (1, 2)):
        if sizes[place] == x.shape[place] and sizes[other] == 1:
            return place
    return None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rotation: Rotation, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.rotation, ctx.interleaved = rotation, interleaved
        ctx.save_for_backward(cos, sin)
        return rotation(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient_of_x: Tensor = _Rotate.apply(ctx.rotation, gradient, cos, -sin, ctx.interleaved)  # type: ignore[no-untyped-call]
        return None, gradient_of_x, None, None, None
