"""Rows that are numbered through several leading dimensions: the rows of a program, and where each begins.

autofuse/kernels/folded_operands.py makes the folds.
"""

from __future__ import annotations

import triton
import triton.language as tl

_MOST = 2**31 - 2**16  # rows that 32 bits can number, with a margin for the last program


def is_long(rows: int) -> bool:
    """Whether 32 bits cannot number the rows. A division of 64-bit numbers takes some hundred instructions."""
    return rows > _MOST


@triton.jit
def row_numbers(ROWS: tl.constexpr, LONG: tl.constexpr):
    """The numbers of this program's rows: int64 if LONG, else int32."""
    if LONG:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    else:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return row


@triton.jit
def begins(row, n1, n2, s0, s1, s2, UNIT: tl.constexpr):
    """The first entry of each row, counted from the first row, as a column of int64. Strides are in units of UNIT."""
    of_1 = row // n2
    of_0 = of_1 // n1
    i2 = (row - of_1 * n2).to(tl.int64)
    i1 = (of_1 - of_0 * n1).to(tl.int64)
    return (of_0.to(tl.int64) * entries(s0, UNIT) + i1 * entries(s1, UNIT) + i2 * entries(s2, UNIT))[:, None]


@triton.jit
def entries(units, UNIT: tl.constexpr):
    """A stride in entries, int64, from a stride in units."""
    return tl.cast(units, tl.int64) * UNIT
