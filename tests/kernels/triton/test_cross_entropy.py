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
def test_losses_and_gradients_equal_torchs(
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("classes", "stride"), [(5, 5), (9, 9), (17, 17), (37, 37), (37, 53), (36, 36), (34, 42), (64, 64), (37, 40)]
)
def test_rows_that_begin_between_places_of_16_bytes(
    kernel: ModuleType, classes: int, stride: int, weighted: bool, smoothing: float, dtype: torch.dtype
) -> None:
    """Next to each other, or apart by as much; each row has a beginning, a middle and an end, or none of them."""
    given = losses.case(dtype, 9, classes, weighted, smoothing)
    apart = torch.full((9, stride), torch.nan, dtype=dtype)[:, :classes].copy_(given.logits)
    losses.check(kernel, given._replace(logits=apart))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_row_of_an_odd_width(kernel: ModuleType, dtype: torch.dtype) -> None:
    given = losses.case(dtype, 3, 2 * kernel._LARGEST_BLOCK + 81, False, 0.1)
    losses.check(kernel, given._replace(logits=given.logits.contiguous()))


def test_targets_at_the_ends_of_odd_rows_get_their_gradient(kernel: ModuleType) -> None:
    logits, target = torch.randn(37, 37).bfloat16(), torch.arange(37)
    found, normalizers = kernel.losses(logits, target, None, -100, 0.0)
    made = kernel.gradient(logits, target, None, torch.ones(37), normalizers, -100, 0.0)
    expected = logits.double().softmax(-1) - torch.eye(37)
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=2**-8)
    torch.testing.assert_close(found.double(), -logits.double().log_softmax(-1).diag(), rtol=0, atol=1e-5)
