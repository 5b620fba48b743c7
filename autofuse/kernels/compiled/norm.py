"""Layer norm and RMS norm of the last dimension, of x or of residual + dropout(x), forward and backward, for CPUs.

The functions of autofuse/kernels/triton/norm.py once more, in plain torch that Inductor compiles into loops over rows.
Sums are in fp32. Knows matrices of rows; must not know autograd, nor the shapes that models have.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import torch
from torch import Tensor

from autofuse.kernels.compiled_regions import region
from autofuse.kernels.dropout_bits import keep_mask

_WHOLE = 2**21  # elements: up to here both passes of a gradient find what they read in a cache of 32 MiB
_PART = 2**17  # elements of the rows that a core's second-level cache holds, in the two tensors that are read twice
_TOGETHER = 32  # rows


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), that sum, and each row's mean and reciprocal deviation.

    Shapes: x and residual (M, C), contiguous in C; weight and bias (C,); seed (1,), None for no dropout. The results
    have dtypes `normed`, `summed` and twice fp32, the last two shape (M, 1). Without residual and seed the sum is x,
    and None is given for it; without `centred` (RMS norm) for the mean.
    """
    made = list(_forward(x, residual, weight, bias, seed, p, eps, centred, normed, summed))
    total = made.pop(0) if residual is not None or seed is not None else None
    mean = made.pop(0) if centred else None
    rstd, out = made
    return out, total, mean, rstd


def backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of x, residual, weight and bias, from those of the norm (`given`) and of the sum (`carried`).

    Shapes: given, carried and total, the sum or x, (M, C), contiguous in C. The first two results have the dtypes
    named, the last two are fp32. What is not wanted is None: a residual's gradient where `residual_dtype` is None.
    """
    rows, width = total.shape
    dx = total.new_empty((rows, width), dtype=x_dtype)
    dresidual = total.new_empty((rows, width), dtype=residual_dtype) if residual_dtype is not None else None
    numbers = None if seed is None else torch.arange(rows, device=total.device)
    by_row = given, carried, total, mean, rstd, numbers, dx, dresidual
    together = _TOGETHER if rows % _TOGETHER == 0 else 1
    parts = [_backward(*part, weight, seed, p, wants_weight, wants_bias, together) for part in _parts(by_row, width)]
    of_weight, of_bias = (
        _sum([part[i] for part in parts]) if wanted else None for i, wanted in enumerate((wants_weight, wants_bias))
    )
    return dx, dresidual, of_weight, of_bias


def _parts(by_row: tuple[Tensor | None, ...], width: int) -> Iterable[tuple[Tensor | None, ...]]:
    """The tensors cut into rows that a cache holds, as the rows are gone through twice: for dx, and for the weight."""
    rows = len(by_row[2])  # type: ignore[arg-type]
    if rows * width <= _WHOLE:
        return (by_row,)
    tall = max(_PART // (width * _TOGETHER), 1) * _TOGETHER
    return zip(*(repeat(None) if x is None else torch.split(x, tall) for x in by_row), strict=False)


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


@region("x residual")
def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The sum, where it is not x; the mean, where it is wanted; reciprocal deviation and norm."""
    z = x.float()
    made: list[Tensor] = []
    if seed is not None:
        rows = torch.arange(x.shape[0], device=x.device)
        z = torch.where(keep_mask(seed, rows, x.shape[1], p), z * _scale(p), 0.0)
    if residual is not None:
        z = z + residual.float()
    if residual is not None or seed is not None:
        made.append(z.to(summed))
        z = made[0].float()  # what is normed is the sum as others see it
    if centred:
        made.append(z.mean(-1, keepdim=True))
        z = z - made[-1]
    made.append(torch.rsqrt(z.square().mean(-1, keepdim=True) + eps))
    y = z * made[-1]
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    return *made, y.to(normed)


@region("given carried total mean rstd numbers dx dresidual")
def _backward(
    given: Tensor, carried: Tensor | None, total: Tensor, mean: Tensor | None, rstd: Tensor, numbers: Tensor | None,
    dx: Tensor, dresidual: Tensor | None, weight: Tensor | None, seed: Tensor | None, p: float, wants_weight: bool,
    wants_bias: bool, together: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Writes the gradients of the summands; gives those of weight and bias, `together` rows at a time."""
    g = given.float()
    normed = (total.float() if mean is None else total.float() - mean) * rstd
    of_weight, of_bias = (
        _over_rows(t, together) if w else t.new_empty(0) for t, w in ((g * normed, wants_weight), (g, wants_bias))
    )
    scaled = g if weight is None else g * weight.float()
    dz = scaled - normed * (scaled * normed).mean(-1, keepdim=True)
    if mean is not None:
        dz = dz - scaled.mean(-1, keepdim=True)
    dz = dz * rstd
    if carried is not None:
        dz = dz + carried.float()
    if dresidual is not None:
        dresidual.copy_(dz.to(dresidual.dtype))
    if seed is not None and numbers is not None:
        dz = torch.where(keep_mask(seed, numbers, dz.shape[1], p), dz * _scale(p), 0.0)
    dx.copy_(dz.to(dx.dtype))
    return of_weight, of_bias


def _over_rows(x: Tensor, together: int) -> Tensor:
    """The sum over rows, in two steps where that is possible: memory is then read in the order in which it lies."""
    return x.sum(0) if together == 1 else x.view(-1, together, x.shape[1]).sum(1).sum(0)


def _scale(p: float) -> float:
    """What entries that are kept are multiplied by, so that their mean stays."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0
