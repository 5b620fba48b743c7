"""Tensors (..., C) as kernels of rows take them: a row in one piece, rows at equal distances.

Kernels in Triton take a contiguous tensor of any dimensions as it is, and give results of its shape: they use only the
number of rows and the distance between them. Each view that is left out saves a microsecond of Python. Other kernels
take matrices.
Knows shapes and strides; must not know what is computed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.torch_private import unsafe_view


def as_rows(x: Tensor, kernel: str) -> Tensor:
    """x (..., C) as the kernels called `kernel` take it; a view or `x` itself where that can be."""
    dimensions = x.ndim
    if dimensions == 2:
        return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    if dimensions > 2 and kernel == "triton" and x.is_contiguous():
        return x
    return rows(x)


def rows(x: Tensor) -> Tensor:
    """x (..., C) as a matrix, contiguous within a row: a view where it can be one."""
    width = x.shape[-1] if x.ndim else 1
    flat = x.reshape(math.prod(x.shape[:-1]), width)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def matrix(x: Tensor) -> tuple[int, int, int]:
    """Rows, columns and the distance between rows, of what `as_rows` gave: a matrix, or contiguous."""
    width = x.shape[-1]
    if x.ndim == 2:
        return x.shape[0], width, x.stride(0)
    return x.numel() // max(width, 1), width, width


def distance(x: Tensor, width: int) -> int:
    """The last of `matrix`, of a tensor whose rows are `width` wide."""
    return x.stride(0) if x.ndim == 2 else width


def shaped(made: Tensor, like: Tensor) -> Tensor:
    """A result of rows with the sizes of `like`, and no view: autograd lets nobody write into views that operators
    return."""
    if made.shape == like.shape:
        return made
    viewed: Tensor = unsafe_view(made, like.shape)
    return viewed


def contiguous_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Contiguous memory of x's shape, on its device; `dtype` None for x's."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def divided(entries: int, of_each: int) -> int:
    """How many parts of `of_each` cover `entries`: triton.cdiv takes microseconds where it is called from Python."""
    return -(-entries // of_each)
