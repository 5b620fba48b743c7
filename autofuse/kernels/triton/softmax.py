"""Softmax of masked scores in Triton: scores are read once and probabilities written once, also backward.

A program computes a few rows. Rows longer than a block are read in blocks, twice: once for their maximum and their sum
(M. Milakov & N. Gimelshein, arXiv:1805.02867), once to write. Sums are in float32. A row of -inf only gives nan, as in
torch. There is no autograd here.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from autofuse.kernels.ahead_of_time import Ahead, sample
from autofuse.kernels.folded_operands import FoldedShape, fold_checked, with_contiguous_rows, without_repeats
from autofuse.kernels.triton.launch import launch, unit
from autofuse.kernels.triton.rows import begins, is_long, row_numbers

_NONE, _BOOLEAN, _ADDED = 0, 1, 2
_WHOLE = 16384  # entries of the longest row that one program holds: 32 for each of 512 threads
_BLOCK = 4096  # entries of longer rows that are read at a time
_ELEMENTS = 2048  # entries of one program, if rows are short


def forward(scores: Tensor, mask: Tensor | None, scale: float, fill: float) -> Tensor:
    """softmax(scores * scale, masked). autofuse/ops/softmax.py checks the operands."""
    kind = _NONE if mask is None else _BOOLEAN if mask.dtype is torch.bool else _ADDED
    operand = scores if mask is None else _readable_mask(mask)
    fold = fold_checked(scores, operand)
    result = fold.empty(scores.shape[-1], scores.dtype, scores.device)
    grid, sizes, blocks = _launch(fold, scores.shape[-1])
    kernel = softmax_rows if scores.shape[-1] <= _WHOLE else softmax_long
    if result.numel():
        of_mask = (0, 0, 0) if mask is None else fold.strides[1]  # without a mask `operand` is not read
        each, (width, *steps) = unit(scores.shape[-1], *fold.strides[0], *of_mask)
        launch(
            kernel, grid, scores, operand, result, *sizes, width, *steps, _step(operand), scale, fill, MASK=kind,
            UNIT=each, **blocks,
        )  # fmt: skip
    return result


def backward(gradient: Tensor, probabilities: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    """The gradient of the scores: 0 where they are not `kept`."""
    operand = probabilities if kept is None else _readable_mask(kept)
    fold = fold_checked(probabilities, gradient, operand)
    width = probabilities.shape[-1]
    result = fold.empty(width, probabilities.dtype, probabilities.device)
    grid, sizes, blocks = _launch(fold, width)
    kernel = gradient_rows if width <= _WHOLE else gradient_long
    if result.numel():
        each, (columns, *steps) = unit(width, *(step for of_one in fold.strides for step in of_one))
        launch(
            kernel, grid, probabilities, gradient, operand, result, *sizes, columns, *steps, _step(operand), scale,
            KEPT=kept is not None, UNIT=each, **blocks,
        )  # fmt: skip
    return result


def _readable_mask(mask: Tensor) -> Tensor:
    """The mask without repetitions, with booleans as bytes."""
    own = with_contiguous_rows(without_repeats(mask))
    return own.view(torch.uint8) if own.dtype is torch.bool else own


def _step(mask: Tensor) -> int:
    return 0 if mask.shape[-1] == 1 else 1


def _launch(fold: FoldedShape, width: int) -> tuple[tuple[int], tuple[int, int, int], dict[str, Any]]:
    """The grid, the sizes from which kernels compute the place of a row, and the sizes of blocks and programs."""
    n0, n1, n2 = fold.sizes
    rows = n0 * n1 * n2
    block = triton.next_power_of_2(width) if width <= _WHOLE else _BLOCK
    at_once = max(1, min(_ELEMENTS // block, triton.next_power_of_2(max(rows, 1))))
    blocks = {"LONG": is_long(rows), "ROWS": at_once, "BLOCK": block, "threads": _threads(block)}
    return (triton.cdiv(rows, at_once),), (rows, n1, n2), blocks


def _threads(block: int) -> int:
    """The threads of a program that reads `block` entries of a row at a time."""
    return 128 if block <= 2048 else 256 if block <= 8192 else 512


# In all kernels `width` and strides are in units of UNIT entries, so that Triton knows their divisors.


@triton.jit
def softmax_rows(
    X, M, Y, rows, n1, n2, width, x0, x1, x2, m0, m1, m2, step, scale, fill,
    MASK: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Softmax of rows that fit one block."""
    width *= UNIT
    row = row_numbers(ROWS, LONG)
    column = tl.arange(0, BLOCK)
    x = X + begins(row, n1, n2, x0, x1, x2, UNIT)
    m = M + begins(row, n1, n2, m0, m1, m2, UNIT)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    z = _apply_mask(x, m, column, step, inside, scale, fill, MASK)
    exponentials = tl.exp(z - tl.max(z, 1)[:, None])
    y = exponentials / tl.sum(exponentials, 1)[:, None]
    tl.store(Y + (row.to(tl.int64) * width)[:, None] + column[None, :], y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def softmax_long(
    X, M, Y, rows, n1, n2, width, x0, x1, x2, m0, m1, m2, step, scale, fill,
    MASK: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Softmax of longer rows, in blocks."""
    width *= UNIT
    row = row_numbers(ROWS, LONG)
    x = X + begins(row, n1, n2, x0, x1, x2, UNIT)
    m = M + begins(row, n1, n2, m0, m1, m2, UNIT)
    greatest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        z = _apply_mask(x, m, column, step, inside, scale, fill, MASK)
        now = tl.maximum(greatest, tl.max(z, 1))
        finite = tl.where(now == float("-inf"), 0.0, now)  # avoids -inf - -inf while a row has only -inf so far
        total = total * tl.exp(greatest - finite) + tl.sum(tl.exp(z - finite[:, None]), 1)
        greatest = now
    finite = tl.where(greatest == float("-inf"), 0.0, greatest)  # the total is 0 then, and 0 / 0 is nan
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        z = _apply_mask(x, m, column, step, inside, scale, fill, MASK)
        y = tl.exp(z - finite[:, None]) / total[:, None]
        tl.store(Y + (row.to(tl.int64) * width)[:, None] + column[None, :], y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def gradient_rows(
    P, G, M, D, rows, n1, n2, width, p0, p1, p2, g0, g1, g2, m0, m1, m2, step, scale,
    KEPT: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for rows that fit one block."""
    width *= UNIT
    row = row_numbers(ROWS, LONG)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    y = _load_entries(P + begins(row, n1, n2, p0, p1, p2, UNIT), column, inside)
    g = _load_entries(G + begins(row, n1, n2, g0, g1, g2, UNIT), column, inside)
    d = y * (g - tl.sum(g * y, 1)[:, None]) * scale
    if KEPT:
        m = M + begins(row, n1, n2, m0, m1, m2, UNIT)
        d = tl.where(tl.load(m + step * column[None, :], mask=inside, other=0) != 0, d, 0.0)
    tl.store(D + (row.to(tl.int64) * width)[:, None] + column[None, :], d.to(D.dtype.element_ty), mask=inside)


@triton.jit
def gradient_long(
    P, G, M, D, rows, n1, n2, width, p0, p1, p2, g0, g1, g2, m0, m1, m2, step, scale,
    KEPT: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient for longer rows, in blocks."""
    width *= UNIT
    row = row_numbers(ROWS, LONG)
    p = P + begins(row, n1, n2, p0, p1, p2, UNIT)
    q = G + begins(row, n1, n2, g0, g1, g2, UNIT)
    m = M + begins(row, n1, n2, m0, m1, m2, UNIT)
    total = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        total += tl.sum(_load_entries(p, column, inside) * _load_entries(q, column, inside), 1)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        d = _load_entries(p, column, inside) * (_load_entries(q, column, inside) - total[:, None]) * scale
        if KEPT:
            d = tl.where(tl.load(m + step * column[None, :], mask=inside, other=0) != 0, d, 0.0)
        tl.store(D + (row.to(tl.int64) * width)[:, None] + column[None, :], d.to(D.dtype.element_ty), mask=inside)


@triton.jit
def _load_entries(start, column, inside):
    return tl.load(start + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _apply_mask(x, m, column, step, inside, scale, fill, MASK: tl.constexpr):
    """The masked scores, -inf after the end of the row."""
    z = _load_entries(x, column, inside) * scale
    if MASK == 1:
        z = tl.where(tl.load(m + step * column[None, :], mask=inside, other=0) != 0, z, fill)
    if MASK == 2:
        z += tl.load(m + step * column[None, :], mask=inside, other=0).to(tl.float32)
    return tl.where(inside, z, float("-inf"))


def _forward(width: int, kind: torch.dtype | None) -> Tensor:
    mask = None if kind is None else sample(4, 1, 1, width, dtype=kind)
    return forward(sample(4, 32, 512, width), mask, 0.125, float("-inf"))


def _backward(width: int, boolean: bool) -> Tensor:
    y, gradient = sample(4, 32, 512, width), sample(4, 32, 512, width)
    return backward(gradient, y, sample(512, width, dtype=torch.bool) if boolean else None, 0.125)


AHEAD = (
    Ahead("bf16, rows of 2048, padding mask", lambda: _forward(2048, torch.bool)),
    Ahead("bf16, rows of 8192, added mask", lambda: _forward(8192, torch.bfloat16)),
    Ahead("bf16, rows of 16384, added mask", lambda: _forward(16384, torch.bfloat16)),
    Ahead("bf16, backward, rows of 16384, mask of both", lambda: _backward(16384, True)),
    Ahead("bf16, rows of 20000, padding mask", lambda: _forward(20000, torch.bool), quick=False),
    Ahead("bf16, backward, rows of 20000, mask of both", lambda: _backward(20000, True), quick=False),
    # Rows of an odd width are not aligned; those of scores and of a byte mask have different alignments.
    Ahead("bf16, rows of 333", lambda: _forward(333, None), access=1.5, quick=False),
    Ahead("bf16, rows of 20001, padding mask", lambda: _forward(20001, torch.bool), access=1.5),
    Ahead("bf16, backward, rows of 333, mask of both", lambda: _backward(333, True), access=1.5),
    Ahead("bf16, backward, rows of 8192", lambda: _backward(8192, False)),
    Ahead("bf16, backward, rows of 20001, mask of both", lambda: _backward(20001, True), access=1.5),
)
