"""Operands for the kernels of cross entropy, and the expected results in float64."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = 3


class Case(NamedTuple):
    """Rows of logits with gaps between them; one row is ignored, one has a class of probability zero."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    share: Tensor
    smoothing: float


def case(dtype: torch.dtype, rows: int, classes: int, weighted: bool, smoothing: float) -> Case:
    torch.manual_seed(0)
    logits = (torch.randn(rows, classes + 5) * 4).to(dtype)[:, 1 : classes + 1]
    target = torch.randint(4, classes, (rows,))
    target[1] = IGNORED
    if not smoothing:
        logits[0, :3] = -torch.inf
    weight = torch.rand(classes).to(dtype) if weighted else None
    return Case(logits, target, weight, torch.randn(rows), smoothing)


def check(kernel: ModuleType, given: Case) -> None:
    """`losses` and `gradient` of a kernel against torch in double, and that no argument is written into.

    Each loss is a difference of numbers as large as the largest logit, made of a sum of all classes in fp32: 16 of
    its units. A gradient is rounded to the dtype of the logits once, after a few roundings in fp32.
    """
    before = [t.clone() for t in given if isinstance(t, Tensor)]
    logits = given.logits.double().requires_grad_()
    weight = None if given.weight is None else given.weight.double()
    exact = F.cross_entropy(
        logits, given.target, weight, ignore_index=IGNORED, reduction="none", label_smoothing=given.smoothing
    )
    (slope,) = torch.autograd.grad((exact * given.share).sum(), logits)
    found, normalizers = kernel.losses(given.logits, given.target, given.weight, IGNORED, given.smoothing)
    made = kernel.gradient(given.logits, given.target, given.weight, given.share, normalizers, IGNORED, given.smoothing)
    largest = float(given.logits.double().abs().where(given.logits.isfinite(), 0.0).max())
    single = torch.finfo(torch.float32).eps
    assert found.dtype is torch.float32 and made.dtype is given.logits.dtype
    torch.testing.assert_close(found.double(), exact.detach(), rtol=0, atol=16 * single * max(largest, 1.0))
    unit = torch.finfo(given.logits.dtype).eps
    bound = float(slope.abs().max()) * max(unit, 32 * single)
    torch.testing.assert_close(made.double(), slope, rtol=0, atol=bound)
    assert not made[1].any()
    assert all(torch.equal(a, b) for a, b in zip(before, (t for t in given if isinstance(t, Tensor)), strict=True))
    if given.weight is None:
        taken = given.logits.clone()  # the gradient may be written into them
        both, change = kernel.losses_and_gradient(taken, given.target, given.share, IGNORED, given.smoothing)
        torch.testing.assert_close(both, found, rtol=0, atol=16 * single * max(largest, 1.0))
        torch.testing.assert_close(change.double(), slope, rtol=0, atol=bound)


def check_extremes(kernel: ModuleType) -> None:
    """Rows without a softmax and targets out of range give nan. Ignored rows give 0 whatever they contain."""
    logits, target, *_ = case(torch.float32, 6, 37, False, 0.0)
    logits[0], logits[2, 2], logits[1] = -torch.inf, torch.inf, torch.nan
    target[3], target[4] = 37, -5
    found, normalizers = kernel.losses(logits, target, None, IGNORED, 0.0)
    assert found.isnan().tolist() == [True, False, True, True, True, False] and found[1] == 0
    made = kernel.gradient(logits, target, None, torch.ones(6), normalizers, IGNORED, 0.0)
    assert not made[1].any()
    both, change = kernel.losses_and_gradient(logits.clone(), target, torch.ones(6), IGNORED, 0.0)
    assert torch.equal(both.isnan(), found.isnan()) and not change[1].any()
    torch.testing.assert_close(change, made, equal_nan=True)
