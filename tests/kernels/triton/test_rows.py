"""Rows are decoded to the places where they begin, also where neither their numbers nor the places fit 32 bits."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from autofuse.kernels.triton.rows import begins, is_long, row_numbers  # noqa: E402


@triton.jit
def _places(OUT, first, n1, n2, s0, s1, s2, UNIT: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr):
    row = row_numbers(ROWS, LONG)
    if LONG:
        row += first
    tl.store(OUT + tl.arange(0, ROWS)[:, None], begins(row, n1, n2, s0, s1, s2, UNIT))


CASES = {
    "a few rows": (0, 3, 5, (150, 50, 10), 2),
    "a dimension of one": (0, 1, 1, (7, 0, 0), 1),
    "strides that 32 bits hold in units alone": (0, 2, 2, (2**29, 2**28, 8), 16),
    "strides of 64 bits": (0, 2, 2, (2**33, 2**32, 8), 1),
    "more rows than 32 bits number": (2**31 - 3, 7, 11, (1000, 50, 2), 4),
    "rows far beyond": (2**40 + 5, 2**20, 3, (2**20, 3, 1), 8),
}


@pytest.mark.parametrize(("first", "n1", "n2", "strides", "unit"), CASES.values(), ids=CASES)
def test_rows_begin_where_their_indices_say(
    first: int, n1: int, n2: int, strides: tuple[int, int, int], unit: int
) -> None:
    found = torch.zeros(16, dtype=torch.int64)
    _places[(1,)](found, first, n1, n2, *strides, UNIT=unit, LONG=first > 0, ROWS=16)
    s0, s1, s2 = (unit * s for s in strides)
    rows = range(first, first + 16)
    assert found.tolist() == [r // n2 // n1 * s0 + r // n2 % n1 * s1 + r % n2 * s2 for r in rows]


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, False), (2**31 - 2**16, False), (2**31 - 2**16 + 1, True), (2**31, True)]
)
def test_rows_are_long_before_the_last_programs_rows_overflow(rows: int, expected: bool) -> None:
    assert is_long(rows) is expected
