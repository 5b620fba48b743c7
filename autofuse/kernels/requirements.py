"""Requirements of other packages' kernels. Each function returns "" if the operands meet it, else the reason.

A provider's check combines several of these; the first reason counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from autofuse.torch_private.autocast import is_autocast_on

HALVES = (torch.float16, torch.bfloat16)


def first_refusal(*sentences: str) -> str:
    """The first non-empty sentence. All are evaluated; to skip a check after a failed one, use `or`."""
    return next((s for s in sentences if s), "")


def capability(x: Tensor, least: tuple[int, int]) -> str:
    """Requires this compute capability of CUDA devices. A provider's `devices` exclude other devices."""
    if x.device.type != "cuda":
        return ""
    found = _capability(x.device.index or 0)
    if found >= least:
        return ""
    return f"It needs compute capability {least[0]}.{least[1]}; this device has {found[0]}.{found[1]}."


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def device_capability(x: Tensor) -> tuple[int, int] | None:
    """The compute capability of a CUDA tensor's device; None for other devices."""
    return _capability(x.device.index or 0) if x.device.type == "cuda" else None


def no_autocast(x: Tensor) -> str:
    """For operations that torch computes in float32 under autocast: other kernels would return another dtype."""
    if x.dtype is torch.float32 or not autocasts(x):
        return ""
    return "Under autocast, torch computes this in float32, but this kernel in the operand's dtype."


def autocast_dtype(x: Tensor) -> str:
    """For operations that torch casts to autocast's dtype: requires operands that already have it."""
    if not autocasts(x) or x.dtype is torch.get_autocast_dtype(x.device.type):
        return ""
    return "Under autocast, torch casts the operands of this, but this kernel computes in their own dtype."


def autocasts(x: Tensor) -> bool:
    """Whether autocast is active on the device of `x`."""
    return is_autocast_on(x.device.type)


def norm_operand(x: Tensor, operand: object, name: str, needed: bool = False) -> str:
    """A weight or bias of a norm: shape (C,), in x's dtype and on its device."""
    if operand is None:
        return f"It needs a {name}." if needed else ""
    if not isinstance(operand, Tensor):
        return f"It needs a tensor as {name}, not a number."
    if operand.shape != x.shape[-1:] or operand.dtype is not x.dtype or operand.device != x.device:
        return f"It needs a {name} of shape (C,) in the dtype of x."
    return ""


def number(eps: object) -> str:
    """Requires a number for eps."""
    return "" if isinstance(eps, (int, float)) else "It needs a number for eps."


def summands(x: Tensor, residual: Tensor, in_float32: bool) -> str:
    """x and the residual of a fused norm: one dtype, or a sum in float32."""
    if in_float32:
        wide = residual.dtype in (x.dtype, torch.float32)
        fits = x.shape == residual.shape and wide and x.device == residual.device
        return "" if fits else "It needs x and residual of one shape, the residual in float32 or the dtype of x."
    return same_shape_and_dtype(x, residual, "x and residual")


def must_be_none(value: object, name: str) -> str:
    """Requires that an argument is not passed. `name` names it in the sentence, with its article."""
    return "" if value is None else f"It does not support {name}."


def same_shape_and_dtype(x: Tensor, other: Tensor, names: str) -> str:
    """Two operands of equal shape and dtype: kernels neither broadcast nor promote."""
    if x.shape == other.shape and x.dtype is other.dtype and x.device == other.device:
        return ""
    return f"It needs {names} of one shape and dtype."


def one_dtype(x: Tensor, *others: Tensor | None) -> str:
    """Requires operands of one dtype on one device."""
    if all(t is None or t.dtype is x.dtype and t.device == x.device for t in others):
        return ""
    return "It needs operands of one dtype on one device."


def no_dropout(p: float, training: bool) -> str:
    """Requires that dropout is inactive."""
    return "It has no dropout." if training and p else ""


def width_at_most(x: Tensor, most: int) -> str:
    """Requires rows of at most this many entries."""
    return "" if x.shape[-1] <= most else f"It supports rows of at most {most} entries; these have {x.shape[-1]}."


def multiples_of(sizes: Sequence[int], by: int) -> str:
    """Requires sizes that are multiples of a number."""
    return (
        ""
        if all(size % by == 0 for size in sizes)
        else f"It needs sizes that are multiples of {by}, not {tuple(sizes)}."
    )


def without_gradient(operands: Sequence[Tensor | None], names: str) -> str:
    """Operands for which a package computes no gradient."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands):
        return f"It computes no gradient for {names}."
    return ""


def not_captured(x: Tensor) -> str:
    """For kernels that read a number from the device, which is not allowed while a CUDA graph is captured."""
    if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "It synchronizes with the device, which is not possible while a CUDA graph is captured."
    return ""


def index_targets(target: Tensor) -> str:
    """Requires class indices in int64."""
    return "" if target.dtype is torch.int64 else "It needs class indices of dtype int64 as targets."


def evenly_spaced_rows(x: Tensor, name: str) -> str:
    """A tensor that is (rows, C) without a copy: contiguous rows with one stride between them."""
    if x.is_contiguous():
        return ""
    # The stride of a dimension of size 1 has no effect.
    sizes = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride(), strict=False) if size != 1]
    even = all(outer == inner[0] * inner[1] for (_, outer), inner in pairwise(sizes))
    if even and x.ndim and x.stride(-1) == 1:
        return ""
    return f"It needs {name} with contiguous rows at equal distances."
