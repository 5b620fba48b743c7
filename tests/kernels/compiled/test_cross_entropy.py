"""The compiled loops of cross entropy are torch's cross entropy."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels import packages
from autofuse.kernels.compiled import cross_entropy
from tests.kernels import losses

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


@pytest.mark.parametrize(
    ("dtype", "weighted", "smoothing"),
    [(torch.float32, False, 0.0), (torch.bfloat16, False, 0.1), (torch.float16, True, 0.1)],
)
def test_losses_and_gradients_equal_torchs(dtype: torch.dtype, weighted: bool, smoothing: float) -> None:
    losses.check(cross_entropy, losses.case(dtype, 6, 37, weighted, smoothing))
    assert not packages.COMPILER.missing()


def test_rows_without_a_softmax_and_targets_out_of_range_are_nan() -> None:
    losses.check_extremes(cross_entropy)
    assert not packages.COMPILER.missing()
