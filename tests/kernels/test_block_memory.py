"""Blocks of rows of a good size for matrix products, within the available memory."""

from __future__ import annotations

import pytest

from autofuse.kernels.block_memory import rows_by_memory

GIB = 2**30


@pytest.mark.parametrize(
    ("bytes_per_row", "free", "expected"),
    [
        (128256 * 2, 0, 1024),  # 250 MiB of bf16 logits
        (128256 * 2, 80 * GIB, 4096),  # 1 GiB, of the 5 that a sixteenth is
        (128256 * 2, 12 * GIB, 2048),
        (50257 * 4, 0, 1024),
        (32000 * 2, 0, 4096),
        (64, 80 * GIB, 4096),  # no more than pays
        (10**7, 0, 512),  # no fewer than a product needs, whatever it takes
    ],
)
def test_memory_decides_about_the_rows_of_a_block(bytes_per_row: int, free: int, expected: int) -> None:
    assert rows_by_memory(bytes_per_row, 512, free) == expected


@pytest.mark.parametrize("free", [0, GIB, 7 * GIB, 33 * GIB, 139 * GIB])
@pytest.mark.parametrize("classes", [1000, 32000, 50257, 128256, 262144])
@pytest.mark.parametrize("least", [128, 256, 512])
def test_blocks_are_whole_tiles_and_stay_within_bounds(free: int, classes: int, least: int) -> None:
    rows = rows_by_memory(2 * classes, least, free)
    assert rows % min(256, least) == 0 and least <= rows <= 4096
    assert rows == least or 2 * classes * rows <= max(2**28, free // 16)
