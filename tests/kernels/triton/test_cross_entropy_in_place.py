"""What the kernel that leaves the gradient in the logits promises beyond its results (test_cross_entropy.py)."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.kernels import losses


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.cross_entropy_in_place")


@pytest.mark.parametrize("classes", [37, 64])
def test_the_gradient_takes_the_memory_of_the_logits_and_touches_nothing_between_rows(
    kernel: ModuleType, classes: int
) -> None:
    room = torch.full((4, 80), 7.0)
    logits = room[:, :classes]
    logits.copy_(torch.randn(4, classes))
    _, change = kernel.losses_and_gradient(logits, torch.tensor([1, 2, 3, 4]), torch.ones(4), -100, 0.0)
    assert change.data_ptr() == room.data_ptr() and (room[:, classes:] == 7.0).all()
    torch.testing.assert_close(change.sum(1), torch.zeros(4), rtol=0, atol=1e-6)


def test_a_row_of_exactly_whole_blocks(kernel: ModuleType) -> None:
    given = losses.case(torch.float32, 2, kernel._BLOCK, False, 0.0)
    logits = given.logits.contiguous().requires_grad_()
    exact = torch.nn.functional.cross_entropy(logits, given.target, reduction="none", ignore_index=losses.IGNORED)
    (slope,) = torch.autograd.grad((exact * given.share).sum(), logits)
    made, change = kernel.losses_and_gradient(logits.detach().clone(), given.target, given.share, losses.IGNORED, 0.0)
    torch.testing.assert_close(made, exact.detach())
    torch.testing.assert_close(change, slope)


def test_no_rows(kernel: ModuleType) -> None:
    made, change = kernel.losses_and_gradient(
        torch.randn(0, 9), torch.zeros(0, dtype=torch.long), torch.zeros(0), -100, 0.0
    )
    assert made.shape == (0,) and change.shape == (0, 9)
