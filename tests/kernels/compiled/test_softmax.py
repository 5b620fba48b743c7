"""The compiled loops of masked softmax, against the formula in double."""

from __future__ import annotations

import math

import pytest
import torch

from autofuse.kernels import packages
from autofuse.kernels.compiled import softmax
from tests.kernels.softmax import SHAPES, check

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


def test_an_added_mask() -> None:
    check(softmax, torch.randn(SHAPES[0]), torch.float32)
    assert not packages.COMPILER.missing()


def test_half_precision_and_rows_that_keep_nothing() -> None:
    mask = torch.rand(SHAPES[0]) > 0.4
    mask[1] = False
    for fill in (-math.inf, -1e4):
        check(softmax, mask, torch.bfloat16, fill)
