"""Matrix products added to a sum of a wider dtype: a product of bf16 matrices added to an fp32 matrix.

torch's CUDA builds add such a product in the matrix product itself (`addmm` with an output dtype, from torch 2.8 on,
sm_80 and newer): the sum is read and written once. Elsewhere the product is formed in pieces, widened and added.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_PIECE = 8192  # rows that are added at a time if a product must be widened first
_HALVES = frozenset({torch.bfloat16, torch.float16})


def add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """total += left @ right, in total's dtype. With `first`, total = left @ right, whatever `total` holds.

    Args:
        total: shape (M, N), in the dtype of left and right or a wider one.
        left: shape (M, K).
        right: shape (K, N).
        first: whether to overwrite `total`.
    """
    if total.dtype is right.dtype:
        torch.mm(left, right, out=total) if first else total.addmm_(left, right)
    elif is_fused(total, right):
        if first:
            torch.ops.aten.mm.dtype_out(left, right, total.dtype, out=total)
        else:
            torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        for start in range(0, total.shape[0], _PIECE):
            product = left[start : start + _PIECE] @ right
            piece = total[start : start + _PIECE]
            piece.copy_(product) if first else piece.add_(product)


def is_fused(total: Tensor, operand: Tensor) -> bool:
    """Whether torch adds such a product to such a sum in one kernel; False if this was never tried."""
    if total.device.type != "cuda" or total.dtype is not torch.float32 or operand.dtype not in _HALVES:
        return False
    if torch.version.hip is not None or not _has_overloads():
        return False
    return not torch.cuda.is_current_stream_capturing() and _adds_correctly(total.device, operand.dtype)


@lru_cache(maxsize=1)
def _has_overloads() -> bool:
    return all("dtype_out" in getattr(torch.ops.aten, name).overloads() for name in ("mm", "addmm"))


@lru_cache(maxsize=64)
def _adds_correctly(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this device adds the product correctly. Tried once, with matrices of ones that fit one tile."""
    if torch.cuda.get_device_capability(device)[0] < 8:
        return False
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    total = torch.ones(16, 16, dtype=torch.float32, device=device)
    try:
        torch.ops.aten.addmm.dtype_out(total, ones, ones, torch.float32, out=total)
        return bool((total == 17).all())
    except RuntimeError:  # includes NotImplementedError
        return False
