"""Softmax of masked scores on CPUs: one loop over rows, forward and backward, without intermediate tensors.

A boolean mask is converted to numbers, because Inductor's loops load booleans one by one (measured on a CPU with
AVX-512, float32, (2, 16, 512, 512): 84 ms with booleans, 6.4 ms with numbers). The scale is compiled in: reading it as
a number doubles the time with a mask. There is no autograd here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.kernels.dynamic_regions import free_region
from autofuse.kernels.folded_operands import fold_checked, with_contiguous_rows, without_repeats


def forward(scores: Tensor, mask: Tensor | None, scale: float, fill: float) -> Tensor:
    """softmax(scores * scale, masked). autofuse/ops/softmax.py checks the operands."""
    if mask is None:
        folded = fold_checked(scores)
        return folded.result(_softmax_of_scores(folded.view(0, scores), scale))
    numbers = with_contiguous_rows(without_repeats(mask).float())
    folded = fold_checked(scores, numbers)
    views = folded.view(0, scores), folded.view(1, numbers)
    if mask.dtype is torch.bool:
        return folded.result(_softmax_with_fill(*views, scale, torch.full((), fill)))
    return folded.result(_softmax_with_bias(*views, scale))


def backward(gradient: Tensor, probabilities: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    """The gradient of the scores: 0 where they are not `kept`."""
    if kept is None:
        folded = fold_checked(probabilities, gradient)
        return folded.result(_gradient(folded.view(0, probabilities), folded.view(1, gradient), None, scale))
    numbers = with_contiguous_rows(without_repeats(kept).float())
    folded = fold_checked(probabilities, gradient, numbers)
    views = folded.view(0, probabilities), folded.view(1, gradient), folded.view(2, numbers)
    return folded.result(_gradient(*views, scale))


@free_region()
def _softmax_of_scores(scores: Tensor, scale: float) -> Tensor:
    return _softmax(scores.float() * scale).to(scores.dtype)


@free_region()
def _softmax_with_bias(scores: Tensor, bias: Tensor, scale: float) -> Tensor:
    return _softmax(scores.float() * scale + bias).to(scores.dtype)


@free_region()
def _softmax_with_fill(scores: Tensor, kept: Tensor, scale: float, fill: Tensor) -> Tensor:
    return _softmax(torch.where(kept != 0, scores.float() * scale, fill)).to(scores.dtype)


def _softmax(x: Tensor) -> Tensor:
    exponentials = torch.exp(x - x.amax(-1, keepdim=True))
    return exponentials * (1 / exponentials.sum(-1, keepdim=True))


@free_region()
def _gradient(probabilities: Tensor, gradient: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    y, g = probabilities.float(), gradient.float()
    to_scores = y * (g - (g * y).sum(-1, keepdim=True)) * scale
    return (to_scores if kept is None else torch.where(kept != 0, to_scores, 0.0)).to(probabilities.dtype)
