"""Layer norm and RMS norm of the last dimension, of x or of residual + dropout(x), forward and backward, in Triton.

Residual, dropout, weight and bias are each optional. A row that fits a block is read once and written once. A longer
row is read twice, the second time from the cache. Sums are in fp32. Each program sums the gradients of weight and bias
over its own rows; the sums are then added in a fixed order. There is no autograd here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.devices import multiprocessors
from autofuse.kernels.dropout_bits import least_kept
from autofuse.kernels.row_shapes import ceil_div, contiguous_like, row_distance, row_layout
from autofuse.kernels.triton.launch import block_memory, launch, unit
from autofuse.kernels.triton.norm_tiles import affine, backward_tile, total_of
from autofuse.kernels.triton.norm_wide import affine_backward, backward_wide, forward_wide
from autofuse.kernels.triton.rows import entries

# These numbers were chosen by measurements on an H100 (benchmarks/results/gpu-h100/sweep.json).
_WIDEST = 16384  # columns of a row that fits in the registers of a program
_WIDEST_OF_FP32 = 8192  # the same in fp32
_WIDEST_BACKWARD_OF_FP32 = 4096  # the same for the backward pass in fp32, where 8192 columns spill on sm_80
# The same for a backward pass that draws dropout again or needs means. Longer rows spill then.
_WIDEST_WITH_MORE = 8192
_TILE = 1024  # elements that a program reads at once, from several rows if they are short
_CHUNKS, _CHUNK_THREADS = (8192, 4096), 512  # elements of a longer row that a program reads at once, and its threads
_COLUMNS, _ROWS = 128, 32  # the tile that `affine_backward` reads
# Rows of a half precision up to this width are loaded ahead by the backward pass, through shared memory.
_WIDEST_AHEAD, _STAGES = 8192, 3


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, p: float,
    eps: float, centred: bool, normed: torch.dtype, summed: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The norm of residual + dropout(x), that sum, and the mean and reciprocal deviation of each row.

    Shapes: x and residual (M, C), contiguous in C, or contiguous with any dimensions; weight and bias (C,); seed (1,),
    or None for no dropout. The results have the dtypes `normed`, `summed`, fp32 and fp32; the first two have x's shape,
    the last two (M, 1). The sum is None without residual and seed, because it equals x. The mean is None if `centred`
    is False (RMS norm).
    """
    rows, width, stride = row_layout(x)
    total = None if residual is None and seed is None else contiguous_like(x, summed)
    out = contiguous_like(x, normed)
    rstd = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if centred else None
    single = x.dtype is torch.float32
    tall, block, threads = _tile(width, _WIDEST_OF_FP32 if single else _WIDEST, single)
    kernel = _forward if block >= width else forward_wide
    if out.numel():
        each, sizes = unit(width, stride, 0 if residual is None else row_distance(residual, width))
        launch(
            kernel, (ceil_div(rows, tall),), x, residual, weight, bias, seed, total, out, mean, rstd, rows, *sizes,
            least_kept(p), _scale(p), eps, each, tall, block, threads=threads,
        )  # fmt: skip
    return out, total, mean, rstd


def backward(
    given: Tensor, carried: Tensor | None, total: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of x, residual, weight and bias, from those of the norm (`given`) and of the sum (`carried`).

    Shapes: given, carried and total (the sum or x), as x in `forward`. The first two results have total's shape and the
    given dtypes; the last two are (C,) in fp32. Gradients that are not needed are None: that of the residual if
    `residual_dtype` is None.
    """
    rows, width, stride = row_layout(total)
    dx = contiguous_like(total, x_dtype)
    dresidual = None if residual_dtype is None else contiguous_like(total, residual_dtype)
    single = torch.float32 in (total.dtype, given.dtype)
    more = seed is not None or mean is not None
    widest = _WIDEST_BACKWARD_OF_FP32 if single else _WIDEST_WITH_MORE if more else _WIDEST
    strides = row_distance(given, width), stride, 0 if carried is None else row_distance(carried, width)
    each, (columns, *steps) = unit(width, *strides)
    tiles = _backward_tile(width, widest, single, seed is not None)
    ahead = _tile_ahead(width, more) if each >= 8 and not single else None
    if ahead is not None and _STAGES * tile_bytes(ahead, given, carried, total) <= block_memory(total):
        tiles = ahead
    tall, block, threads, stages = tiles.tall, tiles.block, tiles.threads, tiles.stages
    share = _share(rows, width, tiles, total.device, widest, more)
    parts = ceil_div(rows, share)
    dweight = torch.empty((parts, width), dtype=torch.float32, device=total.device) if wants_weight else None
    dbias = torch.empty((parts, width), dtype=torch.float32, device=total.device) if wants_bias else None
    if dx.numel():
        sums = mean, rstd, dweight, dbias
        results = dx, dresidual
        dropped = seed, least_kept(p), _scale(p)
        if width <= widest:
            launch(
                _backward, (parts,), given, carried, total, weight, *sums, *results, *dropped, rows, columns, *steps,
                share, each, tall, block, stages, threads=threads, registers=_registers(threads, block),
            )  # fmt: skip
        else:
            launch(
                backward_wide, (rows,), given, carried, total, weight, *sums[:2], *results, *dropped, columns, *steps,
                each, block, threads=threads,
            )  # fmt: skip
            if wants_weight or wants_bias:
                launch(
                    affine_backward, (parts, ceil_div(width, _COLUMNS)), given, total, *sums, rows,
                    columns, *steps[:2], share, each, _ROWS, _COLUMNS, threads=256,
                )  # fmt: skip
    return dx, dresidual, None if dweight is None else dweight.sum(0), None if dbias is None else dbias.sum(0)


@lru_cache(maxsize=256)
def _tile(width: int, widest: int, single: bool) -> tuple[int, int, int]:
    """Rows and columns that a program of the forward pass reads at once, and its threads.

    A thread has at least eight elements; with fewer, loads would be shorter than 16 bytes. Programs of 1024 threads
    reach 0.7 of the speed of a copy for rows of 5120, because only one runs on a multiprocessor at a time; 256 threads
    with 32 elements each reach 0.99.
    """
    if width > widest:
        return 1, _chunk(width), _CHUNK_THREADS
    block = max(triton.next_power_of_2(width), 16)
    tall = max(_TILE // block, 1)
    of_a_thread = 8 if single or block < 4096 else 16 if block == 4096 else 32
    return tall, block, max(tall * block // of_a_thread, 32)


class BackwardTile(NamedTuple):
    """The tile that a program of the backward pass reads at once.

    Attributes:
        tall: its rows.
        block: its columns.
        threads: the threads of the program.
        stages: the tiles that are in flight. With more than one, they are loaded into shared memory.
        programs: the programs for each multiprocessor; 0 for a number that follows from the width.
    """

    tall: int
    block: int
    threads: int
    stages: int = 1
    programs: int = 0


@lru_cache(maxsize=256)
def _backward_tile(width: int, widest: int, single: bool, draws: bool) -> BackwardTile:
    """The tile of a backward pass, which keeps five such tiles in registers. Longer chunks spill in some cases."""
    if width > widest and single:
        return BackwardTile(1, 2048, 256)
    if width > widest:
        return BackwardTile(1, _CHUNKS[-1] if draws else _chunk(width), _CHUNK_THREADS)
    block = max(triton.next_power_of_2(width), 16)
    tall = max(_TILE // block, 1)
    of_a_thread = 4 if single else 8 if block <= 4096 else 16
    return BackwardTile(tall, block, max(tall * block // of_a_thread, 32))


@lru_cache(maxsize=256)
def _tile_ahead(width: int, more: bool) -> BackwardTile | None:
    """The tile for rows that are loaded while earlier ones are computed; None if that is no faster.

    A program computes two sums over each row before it stores anything, and its loads would wait for them.
    """
    block = max(triton.next_power_of_2(width), 16)
    if width > _WIDEST_AHEAD or block <= 1024 and not more:
        return None
    if block <= 1024:
        return BackwardTile(2 * _TILE // block, block, 128, _STAGES, 8)
    return BackwardTile(1, block, block // 16, _STAGES, 1 if block == _WIDEST_AHEAD else 2)


def tile_bytes(tile: BackwardTile, *read: Tensor | None) -> int:
    """The bytes of a tile in all tensors that are read."""
    return tile.tall * tile.block * sum(t.element_size() for t in read if t is not None)


def _chunk(width: int) -> int:
    """The largest chunk of which rows fill three quarters; the smallest one if they fill less of all."""
    return next((chunk for chunk in _CHUNKS if 4 * width >= 3 * ceil_div(width, chunk) * chunk), _CHUNKS[-1])


def _share(rows: int, width: int, tile: BackwardTile, device: torch.device, widest: int, more: bool) -> int:
    """The rows that one program of a backward pass sums for weight and bias: a multiple of the rows of its tile.

    Enough programs to fill the device a few times, and no more, because each writes a partial sum of `width` columns.
    A multiprocessor holds eight programs of a tile that draws dropout or needs means, and one of a longer tile.
    """
    tall = tile.tall
    if width > widest:
        tall, programs = _ROWS, max(4 * multiprocessors(device) * _COLUMNS // width, 1)
    elif tile.programs:
        programs = multiprocessors(device) * tile.programs
    else:
        programs = multiprocessors(device) * (max(8192 // max(width, 1024 if more else 512), 2) if width <= 4096 else 1)
    return ceil_div(ceil_div(max(rows, 1), programs), tall) * tall


def _registers(threads: int, block: int) -> int:
    """The most registers for a thread, 0 for no limit. 64 allow two blocks of 512 threads, and nothing spills."""
    return 64 if threads == 512 and block <= 4096 else 0


def _scale(p: float) -> float:
    """The factor of kept entries, which preserves their mean."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


@triton.jit
def _forward(
    x, residual, weight, bias, seed, total, out, mean, rstd, rows, width, x_stride, residual_stride, least, scale, eps,
    each: tl.constexpr, tall: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Here and below, `width` and strides are in units of `each` entries, so that Triton knows their divisors."""
    width, x_stride, residual_stride = width * each, entries(x_stride, each), entries(residual_stride, each)
    row = tl.program_id(0).to(tl.int64) * tall + tl.arange(0, tall)[:, None]
    column = tl.arange(0, block)[None, :]
    inside = (row < rows) & (column < width)
    z = total_of(x, residual, seed, row, column, inside, width, x_stride, residual_stride, least, scale)
    if total is not None:
        tl.store(total + row * width + column, z.to(total.dtype.element_ty), mask=inside)
        z = z.to(total.dtype.element_ty).to(tl.float32)  # the norm uses the rounded sum, which the caller sees
    if mean is not None:
        middle = tl.sum(z, 1, keep_dims=True) / width
        tl.store(mean + row, middle, mask=row < rows)
        z = tl.where(inside, z - middle, 0.0)
    reciprocal = 1.0 / tl.sqrt(tl.sum(z * z, 1, keep_dims=True) / width + eps)
    tl.store(rstd + row, reciprocal, mask=row < rows)
    y = affine(z * reciprocal, weight, bias, column, width)
    tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    given, carried, total, weight, mean, rstd, dweight, dbias, dx, dresidual, seed, least, scale, rows, width,
    given_stride, total_stride, carried_stride, share, each: tl.constexpr, tall: tl.constexpr, block: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    width, given_stride, total_stride = width * each, entries(given_stride, each), entries(total_stride, each)
    carried_stride = entries(carried_stride, each)
    first = tl.program_id(0).to(tl.int64) * share
    column = tl.arange(0, block)[None, :]
    of_weight = tl.zeros((tall, block), tl.float32)
    of_bias = tl.zeros((tall, block), tl.float32)
    # The weight is read again for each row, from the cache. Hoisted out of the loop, it would use registers and spill.
    for start in tl.range(0, share, tall, num_stages=stages, disable_licm=True):
        row = first + start + tl.arange(0, tall)[:, None]
        of_weight, of_bias = backward_tile(
            given, carried, total, weight, mean, rstd, dweight, dbias, dx, dresidual, seed, least, scale, row, rows,
            column, width, given_stride, total_stride, carried_stride, of_weight, of_bias,
        )  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * width + tl.arange(0, block)
    if dweight is not None:
        tl.store(dweight + place, tl.sum(of_weight, 0), mask=tl.arange(0, block) < width)
    if dbias is not None:
        tl.store(dbias + place, tl.sum(of_bias, 0), mask=tl.arange(0, block) < width)


def _example(rows: int, width: int, dtype: torch.dtype, p: float) -> None:
    """A training step of a prenorm block, which uses every part of the kernels."""
    x, weight, seed = sample(rows, width, dtype=dtype), sample(width, dtype=dtype), sample(1, dtype=torch.int64)
    drawn = seed if p else None
    residual, bias, carried = (
        sample(rows, width, dtype=dtype),
        sample(width, dtype=dtype),
        sample(rows, width, dtype=dtype),
    )
    out, total, mean, rstd = forward(x, residual, weight, bias, drawn, p, 1e-5, True, dtype, dtype)
    assert total is not None
    backward(out, carried, total, weight, mean, rstd, drawn, p, dtype, dtype if p else None, True, True)


AHEAD = (
    Ahead("bf16, 4096 rows of 8192, dropout", lambda: _example(4096, 8192, torch.bfloat16, 0.1)),
    # Sums for weight and bias read tiles of 32 x 128 in fp32 from two tensors, so few warps keep many loads in flight.
    Ahead("fp32, 4096 rows of 8192, dropout", lambda: _example(4096, 8192, torch.float32, 0.1), occupancy=0.18),
    # Rows of an odd width are not aligned. No model that we know has one.
    Ahead("fp32, 100 rows of 999, dropout", lambda: _example(100, 999, torch.float32, 0.1), access=4.0),
    # Three tiles in shared memory keep more loads in flight than more blocks would.
    Ahead("bf16, 8192 rows of 4096, dropout", lambda: _example(8192, 4096, torch.bfloat16, 0.1), occupancy=0.16),
    Ahead("bf16, 8192 rows of 4100", lambda: _example(8192, 4100, torch.bfloat16, 0.0), quick=False),
    Ahead("bf16, 1024 rows of 16384, dropout", lambda: _example(1024, 16384, torch.bfloat16, 0.1), quick=False),
    Ahead("bf16, 1024 rows of 16384", lambda: _example(1024, 16384, torch.bfloat16, 0.0)),
    Ahead("bf16, 1024 rows of 20480, dropout", lambda: _example(1024, 20480, torch.bfloat16, 0.1)),
    Ahead("bf16, 16384 rows of 768", lambda: _example(16384, 768, torch.bfloat16, 0.1), quick=False),
    Ahead("fp32, 8192 rows of 4096", lambda: _example(8192, 4096, torch.float32, 0.0), quick=False),
)
