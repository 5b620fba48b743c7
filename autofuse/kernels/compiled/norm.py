"""Layer norm and RMS norm of the last dimension, of x or of residual + dropout(x), forward and backward, for CPUs.

The functions of autofuse/kernels/triton/norm.py in plain torch, which Inductor compiles into loops over rows. Sums are
in fp32. There is no autograd here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import torch
from torch import Tensor

from autofuse.kernels.compiled_regions import region
from autofuse.kernels.dropout_bits import keep_mask

_WHOLE = 2**21  # elements; up to here a cache of 32 MiB holds what both passes of a gradient read
_PART = 2**17  # elements of the two tensors that are read twice, so that a core's second-level cache holds them
_TOGETHER = 32  # rows that are summed at once


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), that sum, and the mean and reciprocal deviation of each row.

    Shapes: x and residual (M, C), contiguous in C; weight and bias (C,); seed (1,), or None for no dropout. The results
    have the dtypes `normed`, `summed`, fp32 and fp32, the last two shape (M, 1). The sum is None without residual and
    seed, because it equals x. The mean is None if `centred` is False (RMS norm).
    """
    results = list(_forward(x, residual, weight, bias, seed, p, eps, centred, normed, summed))
    total = results.pop(0) if residual is not None or seed is not None else None
    mean = results.pop(0) if centred else None
    rstd, out = results
    return out, total, mean, rstd


def backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of x, residual, weight and bias, from those of the norm (`given`) and of the sum (`carried`).

    Shapes: given, carried and total (the sum or x) are (M, C), contiguous in C. The first two results have the given
    dtypes, the last two fp32. Gradients that are not needed are None: that of the residual if `residual_dtype` is None.
    """
    rows, width = total.shape
    dx = total.new_empty((rows, width), dtype=x_dtype)
    dresidual = total.new_empty((rows, width), dtype=residual_dtype) if residual_dtype is not None else None
    numbers = None if seed is None else torch.arange(rows, device=total.device)
    by_row = given, carried, total, mean, rstd, numbers, dx, dresidual
    together = _TOGETHER if rows % _TOGETHER == 0 else 1
    parts = [_backward(*part, weight, seed, p, wants_weight, wants_bias, together) for part in _parts(by_row, width)]
    weight_gradient, bias_gradient = (
        _sum([part[i] for part in parts]) if wanted else None for i, wanted in enumerate((wants_weight, wants_bias))
    )
    return dx, dresidual, weight_gradient, bias_gradient


def _parts(by_row: tuple[Tensor | None, ...], width: int) -> Iterable[tuple[Tensor | None, ...]]:
    """The tensors in parts of rows that fit a cache, because each row is read twice: for dx, and for the weight."""
    rows = len(by_row[2])  # type: ignore[arg-type]
    if rows * width <= _WHOLE:
        return (by_row,)
    rows_of_part = max(_PART // (width * _TOGETHER), 1) * _TOGETHER
    return zip(*(repeat(None) if x is None else torch.split(x, rows_of_part) for x in by_row), strict=False)


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


@region("x residual")
def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The sum, if it is not x; the mean, if needed; the reciprocal deviation and the norm."""
    z = x.float()
    results: list[Tensor] = []
    if seed is not None:
        rows = torch.arange(x.shape[0], device=x.device)
        z = torch.where(keep_mask(seed, rows, x.shape[1], p), z * _scale(p), 0.0)
    if residual is not None:
        z = z + residual.float()
    if residual is not None or seed is not None:
        results.append(z.to(summed))
        z = results[0].float()  # the norm uses the rounded sum, which the caller sees
    if centred:
        results.append(z.mean(-1, keepdim=True))
        z = z - results[-1]
    results.append(torch.rsqrt(z.square().mean(-1, keepdim=True) + eps))
    y = z * results[-1]
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    return *results, y.to(normed)


@region("given carried total mean rstd numbers dx dresidual")
def _backward(
    given: Tensor, carried: Tensor | None, total: Tensor, mean: Tensor | None, rstd: Tensor, numbers: Tensor | None,
    dx: Tensor, dresidual: Tensor | None, weight: Tensor | None, seed: Tensor | None, p: float, wants_weight: bool,
    wants_bias: bool, together: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Writes the gradients of the summands; returns those of weight and bias, summed over `together` rows."""
    g = given.float()
    normed = (total.float() if mean is None else total.float() - mean) * rstd
    weight_gradient, bias_gradient = (
        _sum_rows(t, together) if w else t.new_empty(0) for t, w in ((g * normed, wants_weight), (g, wants_bias))
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
    return weight_gradient, bias_gradient


def _sum_rows(x: Tensor, together: int) -> Tensor:
    """The sum over rows, in two steps if possible, so that memory is read in order."""
    return x.sum(0) if together == 1 else x.view(-1, together, x.shape[1]).sum(1).sum(0)


def _scale(p: float) -> float:
    """The factor of kept entries, which preserves their mean."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0
