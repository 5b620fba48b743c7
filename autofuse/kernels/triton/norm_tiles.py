"""The computations of norm.py on a tile of rows and columns: rows (tall, 1) in int64, columns (1, block)."""

from __future__ import annotations

import triton
import triton.language as tl

from autofuse.kernels.triton.draws import keep_mask


@triton.jit
def total_of(x, residual, seed, row, column, inside, width, x_stride, residual_stride, least, scale):
    """residual + dropout(x) of a tile, in fp32."""
    z = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if seed is not None:
        z = tl.where(keep_mask(tl.load(seed), row, column, width, least), z * scale, 0.0)
    if residual is not None:
        z += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
    return z


@triton.jit
def affine(y, weight, bias, column, width):
    """y * weight + bias for a block of columns."""
    if weight is not None:
        y *= tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    return y


@triton.jit
def normalised(total, mean, rstd, row, column, inside, stride, rows):
    """The norm before weight and bias, and the reciprocal deviation, of a tile."""
    z = tl.load(total + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if mean is not None:
        z -= tl.load(mean + row, mask=row < rows, other=0.0)
    reciprocal = tl.load(rstd + row, mask=row < rows, other=0.0)
    return tl.where(inside, z * reciprocal, 0.0), reciprocal


@triton.jit
def store_gradients(dz, carried, dx, dresidual, seed, row, column, inside, width, carried_stride, least, scale):
    """Stores the gradients of both summands, from the part of the sum's gradient that came through the norm."""
    if carried is not None:
        dz += tl.load(carried + row * carried_stride + column, mask=inside, other=0.0).to(tl.float32)
    if dresidual is not None:
        tl.store(dresidual + row * width + column, dz.to(dresidual.dtype.element_ty), mask=inside)
    if seed is not None:
        dz = tl.where(keep_mask(tl.load(seed), row, column, width, least), dz * scale, 0.0)
    tl.store(dx + row * width + column, dz.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def backward_tile(
    given, carried, total, weight, mean, rstd, dweight, dbias, dx, dresidual, seed, least, scale, row, rows, column,
    width, given_stride, total_stride, carried_stride, of_weight, of_bias,
):  # fmt: skip
    """The gradients of a tile of rows, and the sums for weight and bias with the tile's contribution."""
    inside = (row < rows) & (column < width)
    normed, reciprocal = normalised(total, mean, rstd, row, column, inside, total_stride, rows)
    g = tl.load(given + row * given_stride + column, mask=inside, other=0.0).to(tl.float32)
    if dweight is not None:
        of_weight += g * normed
    if dbias is not None:
        of_bias += g
    g = affine(g, weight, None, column, width)
    dz = g - normed * (tl.sum(g * normed, 1, keep_dims=True) / width)
    if mean is not None:
        dz -= tl.sum(g, 1, keep_dims=True) / width
    dz *= reciprocal
    store_gradients(dz, carried, dx, dresidual, seed, row, column, inside, width, carried_stride, least, scale)
    return of_weight, of_bias
