"""What a norm is multiplied by and what is added to it: which operands kernels take, and how others are applied.

Knows weights and biases; must not know norms nor kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

Affine = Tensor | float | None


def is_usual(operand: Affine, x: Tensor, sizes: torch.Size) -> bool:
    """Whether torch's kernels take `operand` as it is."""
    return operand is None or isinstance(operand, Tensor) and operand.dtype is x.dtype and operand.shape == sizes


def fitting(operand: Affine, x: Tensor) -> Tensor | None:
    """`operand` as torch's kernels take it, (C,) and of x's dtype; None where it is not that."""
    if not isinstance(operand, Tensor) or operand.dtype != x.dtype or not one_for_each_column(operand, x):
        return None
    return operand.reshape(-1)


def one_for_each_column(operand: Tensor, x: Tensor) -> bool:
    """Whether `operand` has shape (C,) but for leading ones, and adds no dimension to x."""
    if operand.ndim > x.ndim or operand.ndim == 0 or operand.shape[-1] != x.shape[-1]:
        return False
    return operand.ndim == 1 or operand.shape[:-1].numel() == 1


def fits_into(operand: Tensor, x: Tensor) -> bool:
    """Whether `operand` broadcasts to x's shape."""
    sizes = zip(reversed(operand.shape), reversed(x.shape), strict=False)
    return operand.ndim <= x.ndim and all(own in (1, size) for own, size in sizes)


def affine(normed: Tensor, weight: Affine, bias: Affine) -> Tensor:
    """normed * weight + bias, where they are."""
    return shifted(normed if weight is None else normed * weight, bias)


def shifted(normed: Tensor, bias: Affine) -> Tensor:
    """normed + bias, where it is."""
    return normed if bias is None else normed + bias
