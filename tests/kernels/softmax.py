"""Whether kernels of masked softmax agree with the formula in double: results, and the gradient of the scores."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autofuse.ops import reference

B, H, T, S = 2, 3, 4, 21
SHAPES = [(T, S), (B, 1, 1, S), (B, 1, T, S), (1, H, T, S), (B, H, T, S), (B, H, T, 1), (S,)]  # of masks
SCALE = 0.3


def check(kernel: Any, mask: Tensor | None, dtype: torch.dtype, fill: float = -math.inf) -> None:
    """Scores have heads last in memory. A mask of the batch is expanded over the heads."""
    scores = torch.randn(B, T, H, S).to(dtype).transpose(1, 2)
    if mask is not None and mask.shape == (B, 1, 1, S):
        mask = mask.expand(B, H, 1, S)
    exact = scores.double().requires_grad_()
    truth = reference.masked_softmax(exact, _double(mask), scale=SCALE, fill=fill)
    found = kernel.forward(scores, mask, SCALE, fill)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), truth.detach(), rtol=8 * eps, atol=eps, equal_nan=True)
    given = torch.randn(scores.shape).to(dtype)
    (wanted,) = torch.autograd.grad(truth, exact, given.double())
    kept = mask if mask is not None and mask.dtype is torch.bool else None
    gradient = kernel.backward(given, found, kept, SCALE)
    # a sum of S products of probabilities, each rounded, times an entry of about 3 at most
    torch.testing.assert_close(gradient.double(), wanted, rtol=8 * eps, atol=4 * eps, equal_nan=True)
    assert gradient.dtype is found.dtype is dtype and gradient.shape == found.shape == scores.shape


def _double(mask: Tensor | None) -> Tensor | None:
    return mask.double() if mask is not None and mask.is_floating_point() else mask
