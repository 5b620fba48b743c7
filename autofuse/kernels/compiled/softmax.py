"""Softmax of masked scores on CPUs: one loop over rows, forward and backward, nothing of their size in between.

A boolean mask comes as numbers: Inductor's loops load booleans one by one (measured on a CPU with AVX-512, float32,
(2, 16, 512, 512): 84 ms with booleans, 6.4 with numbers). The scale is compiled in: as a number that is read it doubles
the time where there is a mask. Must not know autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.kernels.dynamic_regions import free_region
from autofuse.kernels.folded_operands import dense, folded, unexpanded


def forward(scores: Tensor, mask: Tensor | None, scale: float, fill: float) -> Tensor:
    """softmax(scores * scale, masked); operands as autofuse/ops/softmax.py admits them."""
    if mask is None:
        made = folded(scores)
        return made.result(_scaled(made.view(0, scores), scale))
    numbers = dense(unexpanded(mask).float())
    made = folded(scores, numbers)
    views = made.view(0, scores), made.view(1, numbers)
    if mask.dtype is torch.bool:
        return made.result(_filled(*views, scale, torch.full((), fill)))
    return made.result(_shifted(*views, scale))


def backward(gradient: Tensor, probabilities: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    """The gradient of the scores: 0 where they are not `kept`."""
    if kept is None:
        made = folded(probabilities, gradient)
        return made.result(_gradient(made.view(0, probabilities), made.view(1, gradient), None, scale))
    numbers = dense(unexpanded(kept).float())
    made = folded(probabilities, gradient, numbers)
    views = made.view(0, probabilities), made.view(1, gradient), made.view(2, numbers)
    return made.result(_gradient(*views, scale))


@free_region()
def _scaled(scores: Tensor, scale: float) -> Tensor:
    return _softmax(scores.float() * scale).to(scores.dtype)


@free_region()
def _shifted(scores: Tensor, bias: Tensor, scale: float) -> Tensor:
    return _softmax(scores.float() * scale + bias).to(scores.dtype)


@free_region()
def _filled(scores: Tensor, kept: Tensor, scale: float, fill: Tensor) -> Tensor:
    return _softmax(torch.where(kept != 0, scores.float() * scale, fill)).to(scores.dtype)


def _softmax(x: Tensor) -> Tensor:
    exponentials = torch.exp(x - x.amax(-1, keepdim=True))
    return exponentials * (1 / exponentials.sum(-1, keepdim=True))


@free_region()
def _gradient(probabilities: Tensor, gradient: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    y, g = probabilities.float(), gradient.float()
    to_scores = y * (g - (g * y).sum(-1, keepdim=True)) * scale
    return (to_scores if kept is None else torch.where(kept != 0, to_scores, 0.0)).to(probabilities.dtype)
