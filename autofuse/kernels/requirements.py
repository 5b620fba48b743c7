"""What kernels of other packages ask of their operands, each asked for once: "" where it holds, else why it does not.

Knows tensors; must not know which package asks. A provider's check is a chain of these: the first sentence counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def first(*sentences: str) -> str:
    """The first that says something. All are asked: what must not be asked after another comes after an `or`."""
    return next((s for s in sentences if s), "")


def capability(x: Tensor, least: tuple[int, int]) -> str:
    """CUDA devices of at least this compute capability; a tensor elsewhere is refused by its provider's devices."""
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
    """The compute capability of a CUDA tensor's device, None elsewhere."""
    return _capability(x.device.index or 0) if x.device.type == "cuda" else None


def no_autocast(x: Tensor) -> str:
    """Operations that torch computes in float32 under autocast: kernels of others would return another dtype."""
    if x.dtype is torch.float32 or not autocasts(x):
        return ""
    return "Under autocast, torch computes this in float32; it would compute it in the operand's dtype."


def lowered(x: Tensor) -> str:
    """Operations that torch lowers to autocast's dtype: an operand of another dtype would be computed in its own."""
    if not autocasts(x) or x.dtype is torch.get_autocast_dtype(x.device.type):
        return ""
    return "Under autocast, torch lowers the operands of this; it would compute in their own dtype."


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where `x` lies."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def affine(x: Tensor, operand: object, name: str, needed: bool = False) -> str:
    """A weight or bias of a norm: (C,), in x's dtype and on its device."""
    if operand is None:
        return f"It wants a {name}." if needed else ""
    if not isinstance(operand, Tensor):
        return f"It takes a tensor as {name}, not a number."
    if operand.shape != x.shape[-1:] or operand.dtype is not x.dtype or operand.device != x.device:
        return f"It takes a {name} of shape (C,) in the dtype of x."
    return ""


def a_number(eps: object) -> str:
    return "" if isinstance(eps, (int, float)) else "It takes a number for eps."


def summands(x: Tensor, residual: Tensor, in_float32: bool) -> str:
    """x and the residual of a fused norm: of one dtype, or with a sum that is kept in float32."""
    if in_float32:
        wide = residual.dtype in (x.dtype, torch.float32)
        fits = x.shape == residual.shape and wide and x.device == residual.device
        return "" if fits else "It takes x and residual of one shape, the latter in float32 or the dtype of x."
    return alike(x, residual, "x and residual")


def none_given(value: object, name: str) -> str:
    return "" if value is None else f"It takes no {name}."


def alike(x: Tensor, other: Tensor, names: str) -> str:
    """Two operands of equal shape and dtype: others broadcast and promote, and kernels do not."""
    if x.shape == other.shape and x.dtype is other.dtype and x.device == other.device:
        return ""
    return f"It takes {names} of one shape and dtype."


def one_dtype(x: Tensor, *others: Tensor | None) -> str:
    if all(t is None or t.dtype is x.dtype and t.device == x.device for t in others):
        return ""
    return "It takes operands of one dtype on one device."


def no_dropout(p: float, training: bool) -> str:
    return "It has no dropout." if training and p else ""


def width_at_most(x: Tensor, most: int) -> str:
    return "" if x.shape[-1] <= most else f"It takes rows of at most {most} entries; these have {x.shape[-1]}."


def divides(sizes: Sequence[int], by: int) -> str:
    return "" if all(size % by == 0 for size in sizes) else f"It takes sizes that divide by {by} only: {tuple(sizes)}."


def without_gradient(operands: Sequence[Tensor | None], names: str) -> str:
    """Operands for which a package has no gradient."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands):
        return f"It gives no gradient of {names}."
    return ""


def not_captured(x: Tensor) -> str:
    """For what reads a number off the device: a CUDA graph that is being captured would be spoilt by it."""
    if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "It waits for the device, which is not possible while a CUDA graph is captured."
    return ""


def indices(target: Tensor) -> str:
    return "" if target.dtype is torch.int64 else "It takes class indices of dtype int64 as targets."


def in_rows(x: Tensor, name: str) -> str:
    """A tensor that is (rows, C) without a copy: contiguous within rows, and one stride from each row to the next."""
    if x.is_contiguous():
        return ""
    sizes = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride(), strict=False) if size != 1]
    even = all(outer == inner[0] * inner[1] for (_, outer), inner in pairwise(sizes))
    if even and x.ndim and x.stride(-1) == 1:
        return ""
    return f"It takes {name} as rows that lie one after the other."
