"""Rotary position embeddings in Triton: each pair is read once, rotated in float32 and written once.

A program rotates a few rows of pairs. Rows are numbered in the order of memory, so that neighbouring heads read the
same angles from the cache. The backward pass is the same kernel with the inverse rotation. There is no autograd here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.folded_operands import fold_checked
from autofuse.kernels.row_shapes import ceil_div
from autofuse.kernels.triton.launch import launch, unit
from autofuse.kernels.triton.rows import begins, is_long, row_numbers

_PAIRS = 128  # of a row in one program; wider heads take several programs
_ELEMENTS = 1024  # pairs in one program: 4 warps with 8 pairs a thread; 16 pairs needed 143 registers


def forward(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, dtype: torch.dtype) -> Tensor:
    """x rotated by the angles, or by their inverse, in `dtype`. autofuse/ops/rotary.py checks the operands."""
    plan = _plan(x.shape, x.stride(), cos.shape, cos.stride(), sin.shape, sin.stride())
    result = torch.empty(plan.shape, dtype=dtype, device=x.device)
    result = result if plan.order is None else result.permute(plan.order)
    if plan.grid[0] and plan.grid[1]:
        launch(
            rotate, plan.grid, x, cos, sin, result, *plan.numbers, INTERLEAVED=interleaved, INVERSE=inverse,
            **plan.constants, threads=128,
        )  # fmt: skip
    return result


class _Plan(NamedTuple):
    """Everything that the shapes and strides of a call determine: the result's memory, and the launch of the kernel."""

    shape: tuple[int, ...]
    order: tuple[int, ...] | None  # of the dimensions; None if the result is contiguous
    grid: tuple[int, int]
    numbers: tuple[int, ...]  # rows, the last two leading sizes, and in units the operands' steps and pairs of a row
    constants: dict[str, Any]


@lru_cache(maxsize=1024)
def _plan(*layouts: tuple[int, ...]) -> _Plan:
    """The plan for shape and strides of x, of cos and of sin."""
    x, cos, sin = (torch.empty_strided(layouts[i], layouts[i + 1], device="meta") for i in (0, 2, 4))
    fold = fold_checked(x, cos, sin)
    half = x.shape[-1] // 2
    rows = math.prod(fold.sizes)
    block = min(triton.next_power_of_2(max(half, 1)), _PAIRS)
    block_rows = max(1, min(_ELEMENTS // block, triton.next_power_of_2(max(rows, 1))))
    order = (*fold.back, x.ndim - 1)
    each, (pairs, *steps) = unit(half, *(step for of_one in fold.strides for step in of_one))
    constants = {
        "COS": _entries(cos, half), "SIN": _entries(sin, half), "UNIT": each, "LONG": is_long(rows),
        "ROWS": block_rows, "BLOCK": block,
    }  # fmt: skip
    return _Plan(
        shape=(*fold.ordered, x.shape[-1]), order=None if order == tuple(range(x.ndim)) else order,
        grid=(ceil_div(rows, block_rows), ceil_div(half, block)), numbers=(rows, *fold.sizes[1:], *steps, pairs),
        constants=constants,
    )  # fmt: skip


def _entries(factor: Tensor, half: int) -> int:
    """The number of a pair's own factors: 2, 1, or 0 if all pairs share one."""
    return 0 if factor.shape[-1] == 1 else factor.shape[-1] // max(half, 1)


@triton.jit
def rotate(
    X, C, S, Y, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2, half,
    COS: tl.constexpr, SIN: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`half` and strides are in units of UNIT entries, so that Triton knows their divisors."""
    half *= UNIT
    row = row_numbers(ROWS, LONG)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = (row < rows)[:, None] & (pair < half)[None, :]
    at = begins(row, n1, n2, x0, x1, x2, UNIT)
    to = (row.to(tl.int64) * (2 * half))[:, None]
    of_cos = C + begins(row, n1, n2, c0, c1, c2, UNIT)
    of_sin = S + begins(row, n1, n2, s0, s1, s2, UNIT)
    cos_first, cos_second = _factors(of_cos, pair, half, kept, COS, INTERLEAVED)
    sin_first, sin_second = _factors(of_sin, pair, half, kept, SIN, INTERLEAVED)
    if INVERSE:
        sin_first, sin_second = -sin_second, -sin_first
    if INTERLEAVED:
        entry = tl.program_id(1) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
        entries_kept = (row < rows)[:, None] & (entry < 2 * half)[None, :]
        both = tl.load(X + at + entry[None, :], mask=entries_kept, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (ROWS, BLOCK, 2)))
    else:
        first = tl.load(X + at + pair[None, :], mask=kept, other=0.0).to(tl.float32)
        second = tl.load(X + at + half + pair[None, :], mask=kept, other=0.0).to(tl.float32)
    new_first = first * cos_first - second * sin_first
    new_second = second * cos_second + first * sin_second
    if INTERLEAVED:
        joined = tl.reshape(tl.join(new_first, new_second), (ROWS, 2 * BLOCK))
        tl.store(Y + to + entry[None, :], joined.to(Y.dtype.element_ty), mask=entries_kept)
    else:
        tl.store(Y + to + pair[None, :], new_first.to(Y.dtype.element_ty), mask=kept)
        tl.store(Y + to + half + pair[None, :], new_second.to(Y.dtype.element_ty), mask=kept)


@triton.jit
def _factors(start, pair, half, kept, EACH: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The factors of the first and of the second entry of each pair."""
    if EACH == 2 and INTERLEAVED:
        first = tl.load(start + 2 * pair[None, :], mask=kept, other=0.0).to(tl.float32)
        second = tl.load(start + 2 * pair[None, :] + 1, mask=kept, other=0.0).to(tl.float32)
    elif EACH == 2:
        first = tl.load(start + pair[None, :], mask=kept, other=0.0).to(tl.float32)
        second = tl.load(start + half + pair[None, :], mask=kept, other=0.0).to(tl.float32)
    else:
        first = tl.load(start + EACH * pair[None, :], mask=kept, other=0.0).to(tl.float32)
        second = first
    return first, second


def _sample(interleaved: bool, inverse: bool, angles: int, heads_last: bool, width: int = 128) -> Tensor:
    x = sample(4, 2048, 32, width).transpose(1, 2) if heads_last else sample(4, 32, 2048, width)
    return forward(x, sample(2048, angles), sample(2048, angles), interleaved, inverse, torch.bfloat16)


AHEAD = (
    Ahead("bf16, halves, heads last, (4, 32, 2048, 128)", lambda: _sample(False, False, 128, True)),
    Ahead("bf16, halves, backward, one angle a pair", lambda: _sample(False, True, 64, False)),
    Ahead("bf16, neighbours, one angle a pair", lambda: _sample(True, False, 64, True)),
    Ahead("bf16, halves, width 80", lambda: _sample(False, False, 80, True, 80), quick=False),
    # Both have an odd number of pairs in half a row. In models head_dim is a multiple of 8.
    Ahead("bf16, neighbours, an angle an entry, width 90", lambda: _sample(True, True, 90, False, 90), access=2.0),
    Ahead("bf16, halves, width 1030", lambda: _sample(False, False, 1030, True, 1030), access=2.0, quick=False),
)
