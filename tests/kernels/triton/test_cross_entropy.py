"""The Triton kernels of cross entropy, in Triton's interpreter, are torch's cross entropy."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.kernels import losses


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.cross_entropy")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("weighted", "smoothing"), [(False, 0.0), (False, 0.1), (True, 0.0), (True, 0.1)])
def test_losses_and_gradients_are_those_of_torch(
    kernel: ModuleType, dtype: torch.dtype, weighted: bool, smoothing: float
) -> None:
    losses.check(kernel, losses.case(dtype, 3, 37, weighted, smoothing))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_row_of_many_blocks_the_last_of_which_is_not_full(
    kernel: ModuleType, weighted: bool, smoothing: float
) -> None:
    losses.check(kernel, losses.case(torch.float32, 3, 3 * kernel._LARGEST_BLOCK + 77, weighted, smoothing))


def test_the_largest_logit_may_come_last_and_a_block_may_be_empty(kernel: ModuleType) -> None:
    block = kernel._LARGEST_BLOCK
    logits = torch.full((1, 2 * block), -torch.inf)
    logits[0, -1], logits[0, -2] = 200.0, 199.0
    found, _ = kernel.losses(logits, torch.tensor([2 * block - 1]), None, -100, 0.0)
    torch.testing.assert_close(found, torch.tensor([1.0 + torch.e]).log() - 1.0)


def test_rows_without_a_softmax_and_targets_out_of_range_are_nan(kernel: ModuleType) -> None:
    losses.check_extremes(kernel)


def test_no_rows(kernel: ModuleType) -> None:
    nothing, targets = torch.randn(0, 9), torch.zeros(0, dtype=torch.long)
    assert kernel.losses(nothing, targets, None, -100, 0.0)[0].shape == (0,)
    assert kernel.gradient(nothing, targets, None, torch.zeros(0), torch.zeros(0), -100, 0.0).shape == (0, 9)
