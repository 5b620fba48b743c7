"""The Triton kernels of masked softmax, in Triton's interpreter, against the formula in double."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from tests.kernels.softmax import SHAPES, check

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.softmax")


@pytest.fixture
def narrow(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels for rows longer than a block, with blocks that are shorter than the rows of these tests."""
    monkeypatch.setattr(kernel, "_WHOLE", 8)
    monkeypatch.setattr(kernel, "_BLOCK", 8)
    return kernel


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_of_every_shape(kernel: ModuleType, shape: tuple[int, ...]) -> None:
    check(kernel, torch.rand(shape) > 0.4, SINGLE)
    check(kernel, torch.randn(shape), SINGLE)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_masks_of_every_shape_for_rows_longer_than_a_block(narrow: ModuleType, shape: tuple[int, ...]) -> None:
    check(narrow, torch.rand(shape) > 0.4, SINGLE)
    check(narrow, torch.randn(shape), SINGLE)


@pytest.mark.parametrize("dtype", [BRAIN, HALF])
def test_half_precision(kernel: ModuleType, dtype: torch.dtype) -> None:
    check(kernel, torch.rand(SHAPES[0]) > 0.4, dtype)
    check(kernel, torch.randn(SHAPES[1]).to(dtype), dtype)
    check(kernel, None, dtype)


@pytest.mark.parametrize("fill", [-math.inf, -1e4, 0.25])
def test_rows_that_keep_nothing(kernel: ModuleType, fill: float) -> None:
    mask = torch.rand(SHAPES[0]) > 0.4
    mask[1] = False
    check(kernel, mask, SINGLE, fill)


@pytest.mark.parametrize("fill", [-math.inf, -1e4])
def test_rows_that_keep_nothing_at_first_or_at_all_and_are_longer_than_a_block(narrow: ModuleType, fill: float) -> None:
    mask = torch.ones(SHAPES[0], dtype=torch.bool)
    mask[0, :17] = False
    mask[1] = False
    check(narrow, mask, SINGLE, fill)


def test_no_row(kernel: ModuleType) -> None:
    assert kernel.forward(torch.randn(0, 4), None, 1.0, -math.inf).shape == (0, 4)
