"""The kernels of norm.py for rows that are longer than a block. They read each row twice, in chunks.

`width` and strides are in units of `each` entries.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autofuse.kernels.triton.norm_tiles import affine, normalised, store_gradients, total_of
from autofuse.kernels.triton.rows import entries


@triton.jit
def forward_wide(
    x, residual, weight, bias, seed, total, out, mean, rstd, rows, width, x_stride, residual_stride, least, scale, eps,
    each: tl.constexpr, tall: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row, in chunks. Means and squares of chunks are combined as by Chan, Golub & LeVeque (1979)."""
    width, x_stride, residual_stride = width * each, entries(x_stride, each), entries(residual_stride, each)
    row = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    middle = tl.zeros((1, 1), tl.float32)
    squares = tl.zeros((1, 1), tl.float32)
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        inside = column < width
        z = total_of(x, residual, seed, row, column, inside, width, x_stride, residual_stride, least, scale)
        if total is not None:
            tl.store(total + row * width + column, z.to(total.dtype.element_ty), mask=inside)
            z = z.to(total.dtype.element_ty).to(tl.float32)
        if mean is not None:
            seen = tl.minimum(start + block, width)
            own = tl.sum(z, 1, keep_dims=True) / (seen - start)
            z = tl.where(inside, z - own, 0.0)
            gap = own - middle
            part = tl.cast(seen - start, tl.float32) / seen
            squares += gap * gap * part * start
            middle += gap * part
        squares += tl.sum(z * z, 1, keep_dims=True)
    if mean is not None:
        tl.store(mean + row, middle)
    reciprocal = 1.0 / tl.sqrt(squares / width + eps)
    tl.store(rstd + row, reciprocal)
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        inside = column < width
        z = total_of(x, residual, seed, row, column, inside, width, x_stride, residual_stride, least, scale)
        if total is not None:
            z = z.to(total.dtype.element_ty).to(tl.float32)
        y = affine((z - middle) * reciprocal, weight, bias, column, width)
        tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_wide(
    given, carried, total, weight, mean, rstd, dx, dresidual, seed, least, scale, width, given_stride, total_stride,
    carried_stride, each: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row, in chunks: first the two means that every entry's gradient needs, then the gradients."""
    width, given_stride, total_stride = width * each, entries(given_stride, each), entries(total_stride, each)
    carried_stride = entries(carried_stride, each)
    row = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    along = tl.zeros((1, 1), tl.float32)
    middle = tl.zeros((1, 1), tl.float32)
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        inside = column < width
        normed, reciprocal = normalised(total, mean, rstd, row, column, inside, total_stride, row + 1)
        g = tl.load(given + row * given_stride + column, mask=inside, other=0.0).to(tl.float32)
        g = affine(g, weight, None, column, width)
        along += tl.sum(g * normed, 1, keep_dims=True) / width
        if mean is not None:
            middle += tl.sum(g, 1, keep_dims=True) / width
    for start in range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        inside = column < width
        normed, reciprocal = normalised(total, mean, rstd, row, column, inside, total_stride, row + 1)
        g = tl.load(given + row * given_stride + column, mask=inside, other=0.0).to(tl.float32)
        dz = (affine(g, weight, None, column, width) - normed * along - middle) * reciprocal
        store_gradients(dz, carried, dx, dresidual, seed, row, column, inside, width, carried_stride, least, scale)


@triton.jit
def affine_backward(
    given, total, mean, rstd, dweight, dbias, rows, width, given_stride, total_stride, share, each: tl.constexpr,
    tall: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias in a block of columns, summed over some of the rows."""
    width, given_stride, total_stride = width * each, entries(given_stride, each), entries(total_stride, each)
    first = tl.program_id(0).to(tl.int64) * share
    column = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    of_weight = tl.zeros((tall, block), tl.float32)
    of_bias = tl.zeros((tall, block), tl.float32)
    for start in range(0, share, tall):
        row = first + start + tl.arange(0, tall)[:, None]
        inside = (row < rows) & (column < width)
        normed, _ = normalised(total, mean, rstd, row, column, inside, total_stride, rows)
        g = tl.load(given + row * given_stride + column, mask=inside, other=0.0).to(tl.float32)
        of_weight += g * normed
        of_bias += g
    place = tl.program_id(0).to(tl.int64) * width + column
    if dweight is not None:
        tl.store(dweight + place, tl.sum(of_weight, 0, keep_dims=True), mask=column < width)
    if dbias is not None:
        tl.store(dbias + place, tl.sum(of_bias, 0, keep_dims=True), mask=column < width)
