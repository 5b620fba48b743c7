"""The weight and the bias of a norm: which of them kernels accept, and how to apply the others."""

from __future__ import annotations

import torch
from torch import Tensor

Affine = Tensor | float | None


def is_usual(operand: Affine, x: Tensor, sizes: torch.Size) -> bool:
    """Whether torch's kernels accept `operand` unchanged."""
    return operand is None or isinstance(operand, Tensor) and operand.dtype is x.dtype and operand.shape == sizes


def as_kernel_operand(operand: Affine, x: Tensor) -> Tensor | None:
    """`operand` as torch's kernels accept it, of shape (C,) and in x's dtype; None if it cannot be brought to that."""
    if not isinstance(operand, Tensor) or operand.dtype != x.dtype or not has_entry_per_column(operand, x):
        return None
    return operand.reshape(-1)


def has_entry_per_column(operand: Tensor, x: Tensor) -> bool:
    """Whether `operand` has shape (C,), apart from leading dimensions of size 1, and adds no dimension to x."""
    if operand.ndim > x.ndim or operand.ndim == 0 or operand.shape[-1] != x.shape[-1]:
        return False
    return operand.ndim == 1 or operand.shape[:-1].numel() == 1


def fits_into(operand: Tensor, x: Tensor) -> bool:
    """Whether `operand` broadcasts to x's shape."""
    sizes = zip(reversed(operand.shape), reversed(x.shape), strict=False)
    return operand.ndim <= x.ndim and all(own in (1, size) for own, size in sizes)


def apply_affine(normed: Tensor, weight: Affine, bias: Affine) -> Tensor:
    """normed * weight + bias; a factor or summand of None is left out."""
    return add_bias(normed if weight is None else normed * weight, bias)


def add_bias(normed: Tensor, bias: Affine) -> Tensor:
    """normed + bias; `normed` itself if the bias is None."""
    return normed if bias is None else normed + bias
