"""Cross entropy in torch's functions is torch's cross entropy."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels import cross_entropy_formula as likelihoods
from tests.kernels import losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_and_gradients_equal_torchs(dtype: torch.dtype, weighted: bool, smoothing: float) -> None:
    losses.check(likelihoods, losses.case(dtype, 6, 37, weighted, smoothing))


def test_rows_without_a_softmax_and_targets_out_of_range_are_nan() -> None:
    losses.check_extremes(likelihoods)
