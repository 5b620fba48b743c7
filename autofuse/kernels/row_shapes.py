"""Tensors (..., C) in the form that kernels of rows need: contiguous rows at equal distances.

Triton kernels take a contiguous tensor of any dimensions and return the same shape: they use only the number of rows
and their distance. Each view that is avoided saves a microsecond of Python. Other kernels need matrices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.torch_private import unsafe_view


def as_rows(x: Tensor, kernel: str) -> Tensor:
    """x (..., C) in the form that the kernels called `kernel` need; `x` or a view of it if possible."""
    dimensions = x.ndim
    if dimensions == 2:
        return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    if dimensions > 2 and kernel == "triton" and x.is_contiguous():
        return x
    return rows(x)


def rows(x: Tensor) -> Tensor:
    """x (..., C) as a matrix with contiguous rows; a view if possible."""
    width = x.shape[-1] if x.ndim else 1
    flat = x.reshape(math.prod(x.shape[:-1]), width)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def row_layout(x: Tensor) -> tuple[int, int, int]:
    """Rows, columns and the distance between rows of a result of `as_rows`."""
    width = x.shape[-1]
    if x.ndim == 2:
        return x.shape[0], width, x.stride(0)
    return x.numel() // max(width, 1), width, width


def row_distance(x: Tensor, width: int) -> int:
    """The distance between the rows of a tensor, whose rows have `width` columns."""
    return x.stride(0) if x.ndim == 2 else width


def reshape_like(result: Tensor, like: Tensor) -> Tensor:
    """A result of rows in the shape of `like`, not as a view: autograd forbids writes into an operator's views."""
    if result.shape == like.shape:
        return result
    view: Tensor = unsafe_view(result, like.shape)
    return view


def contiguous_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Contiguous memory with the shape and device of `x`; `dtype` None means that of x."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def ceil_div(entries: int, of_each: int) -> int:
    """entries / of_each, rounded up. triton.cdiv takes microseconds when called from Python."""
    return -(-entries // of_each)
