"""Rotary position embeddings in Triton: each pair is read once, rotated in float32 and written once.

A program rotates a few rows of pairs. Rows are numbered in the order of memory, so that neighbouring heads read the
same angles from the cache. The backward pass is the same kernel with the inverse rotation. There is no autograd here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.folded_operands import FoldedShape, fold_checked
from autofuse.kernels.row_shapes import ceil_div
from autofuse.kernels.triton.launch import Launch, launch_planned, unit
from autofuse.kernels.triton.rows import begins, is_long, row_numbers

_PAIRS = 128  # of a row in one program; wider heads take several programs
_ELEMENTS = 1024  # pairs in one program: 4 warps with 8 pairs a thread; 16 pairs needed 143 registers


def forward(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, dtype: torch.dtype) -> Tensor:
    """x rotated by the angles, or by their inverse, in `dtype`. autofuse/ops/rotary.py checks the operands."""
    layouts = x.shape, x.stride(), cos.shape, cos.stride(), sin.shape, sin.stride()
    plan = _plan(interleaved, inverse, *layouts)
    result = torch.empty_strided(*plan.results[0], dtype=dtype, device=x.device)
    if plan.launch is not None:
        launch_planned(plan.launch, x, cos, sin, result)
    return result


def forward_pair(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Query and key, both rotated by the same angles, in one launch. Their heads have one width."""
    layouts = cos.shape, cos.stride(), sin.shape, sin.stride(), key.shape, key.stride()
    plan = _plan(interleaved, inverse, query.shape, query.stride(), *layouts)
    of_query, of_key = plan.results
    result = torch.empty_strided(*of_query, dtype=dtype, device=query.device)
    result_of_key = torch.empty_strided(*of_key, dtype=dtype, device=query.device)
    if plan.launch is not None:
        launch_planned(plan.launch, query, key, cos, sin, result, result_of_key)
    elif result.numel() or result_of_key.numel():  # one of them is empty
        result = forward(query, cos, sin, interleaved, inverse, dtype)
        result_of_key = forward(key, cos, sin, interleaved, inverse, dtype)
    return result, result_of_key


class _Plan(NamedTuple):
    """Everything that the shapes and strides of a call determine.

    Attributes:
        results: shape and strides of each result.
        launch: the launch of the kernel; None if a result is empty.
    """

    results: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    launch: Launch | None


@lru_cache(maxsize=1024)
def _plan(interleaved: bool, inverse: bool, *layouts: tuple[int, ...]) -> _Plan:
    """The plan for shape and strides of x, of cos and of sin, and of another x if there are two."""
    x, cos, sin, *others = (torch.empty_strided(*layouts[i : i + 2], device="meta") for i in range(0, len(layouts), 2))
    rotated = (x, *others)
    folds = [fold_checked(each, cos, sin) for each in rotated]
    results = tuple(_layout_of_result(each, fold) for each, fold in zip(rotated, folds, strict=True))
    half = x.shape[-1] // 2
    rows = [math.prod(fold.sizes) for fold in folds]
    if not half or not all(rows):
        return _Plan(results, None)
    block = min(triton.next_power_of_2(half), _PAIRS)
    block_rows = max(1, min(_ELEMENTS // block, triton.next_power_of_2(max(rows))))
    each, (pairs, *steps) = unit(half, *(step for fold in folds for of_one in fold.strides for step in of_one))
    constants = {
        "COS": _entries(cos, half), "SIN": _entries(sin, half), "INTERLEAVED": interleaved, "INVERSE": inverse,
        "UNIT": each, "LONG": is_long(sum(rows)), "ROWS": block_rows, "BLOCK": block,
    }  # fmt: skip
    programs = [ceil_div(n, block_rows) for n in rows]
    numbers = [programs[0] * block_rows] if others else []
    for i, fold in enumerate(folds):
        numbers += [rows[i], *fold.sizes[1:], *steps[9 * i : 9 * i + 9]]
    return _Plan(
        results,
        Launch(
            rotate_two if others else rotate, (sum(programs), ceil_div(half, block)),
            (*numbers, pairs), constants, threads=128,
        ),
    )  # fmt: skip


def _layout_of_result(x: Tensor, fold: FoldedShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the rotated x: contiguous, with the leading dimensions in the order of x's memory."""
    like = fold.empty(x.shape[-1], x.dtype, x.device)
    return tuple(like.shape), like.stride()


def _entries(factor: Tensor, half: int) -> int:
    """The number of a pair's own factors: 2, 1, or 0 if all pairs share one."""
    return 0 if factor.shape[-1] == 1 else factor.shape[-1] // max(half, 1)


@triton.jit
def rotate(
    X, C, S, Y, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2, half,
    COS: tl.constexpr, SIN: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tensor. Strides are in units, so that Triton knows their divisors."""
    _rotate_rows(
        row_numbers(ROWS, LONG), X, C, S, Y, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2, half,
        COS, SIN, INTERLEAVED, INVERSE, UNIT, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit
def rotate_two(
    X, Z, C, S, Y, W, first, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2,
    others, m1, m2, z0, z1, z2, d0, d1, d2, t0, t1, t2, half,
    COS: tl.constexpr, SIN: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Two tensors with the same angles: the programs of the first `first` rows rotate X into Y, the others Z into W."""
    row = row_numbers(ROWS, LONG)
    if tl.program_id(0) < first // ROWS:
        _rotate_rows(
            row, X, C, S, Y, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2, half,
            COS, SIN, INTERLEAVED, INVERSE, UNIT, ROWS, BLOCK,
        )  # fmt: skip
    else:
        _rotate_rows(
            row - first, Z, C, S, W, others, m1, m2, z0, z1, z2, d0, d1, d2, t0, t1, t2, half,
            COS, SIN, INTERLEAVED, INVERSE, UNIT, ROWS, BLOCK,
        )  # fmt: skip


@triton.jit
def _rotate_rows(
    row, X, C, S, Y, rows, n1, n2, x0, x1, x2, c0, c1, c2, s0, s1, s2, half,
    COS: tl.constexpr, SIN: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotates the rows `row` of X into Y. `half` and strides are in units of UNIT entries."""
    half *= UNIT
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


def _sample_pair(interleaved: bool, inverse: bool, angles: int, width: int = 128) -> tuple[Tensor, Tensor]:
    query, key = (sample(4, 2048, heads, width).transpose(1, 2) for heads in (32, 8))
    factors = sample(2048, angles)
    return forward_pair(query, key, factors, factors, interleaved, inverse, torch.bfloat16)


AHEAD = (
    Ahead("bf16, halves, heads last, (4, 32, 2048, 128)", lambda: _sample(False, False, 128, True)),
    Ahead("bf16, halves, backward, one angle a pair", lambda: _sample(False, True, 64, False)),
    Ahead("bf16, neighbours, one angle a pair", lambda: _sample(True, False, 64, True)),
    Ahead("bf16, halves, width 80", lambda: _sample(False, False, 80, True, 80), quick=False),
    Ahead("bf16, query and key, halves, an angle an entry", lambda: _sample_pair(False, False, 128)),
    Ahead("bf16, query and key, neighbours, backward, one angle a pair", lambda: _sample_pair(True, True, 64)),
    Ahead("bf16, query and key, halves, width 80", lambda: _sample_pair(False, True, 80, 80), quick=False),
    # Both have an odd number of pairs in half a row. In models head_dim is a multiple of 8.
    Ahead("bf16, neighbours, an angle an entry, width 90", lambda: _sample(True, True, 90, False, 90), access=2.0),
    Ahead("bf16, halves, width 1030", lambda: _sample(False, False, 1030, True, 1030), access=2.0, quick=False),
)
