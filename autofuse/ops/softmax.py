"""Softmax of masked scores in fewer passes over memory than the separate steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import operators
from autofuse.kernels.folded_operands import (
    broadcasts_to,
    empty_in_memory_order,
    fold,
    with_contiguous_rows,
    without_broadcast,
    without_repeats,
)
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.masks import masked
from autofuse.torch_private import softmax_backward_data

_HALF = (torch.float16, torch.bfloat16)
_SMALL = 2**17  # elements; below, the overhead of a kernel costs more than the passes over memory that it saves
_KERNELS = operators.Kernels(triton="autofuse.kernels.triton.softmax", compiled="autofuse.kernels.compiled.softmax")


def masked_softmax(
    scores: Tensor, mask: Tensor | None = None, *, scale: float | Tensor = 1.0, fill: float | None = None,
    kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(scores * scale, masked) over the last dimension.

    Scores in half precision are scaled, masked and normalised in float32. Source of the gradient: d x_i = y_i * (d y_i
    - sum_j d y_j * y_j).

    Args:
        scores: shape (..., T, S).
        mask: broadcasts against scores; boolean (True is kept), or added and then with a gradient.
        scale: a number, or a tensor that broadcasts against scores and gets its gradient.
        fill: the number that replaces dropped scores. None means -inf: a row that keeps nothing is then nan, as in
            torch.
        kept: for an added mask: the scores at False were overwritten before the mask was added, and count as 0.

    Returns:
        A tensor of the shape to which scores and mask broadcast, in the dtype of `scores`, or of their sum with `mask`.
    """
    if isinstance(scale, Tensor):
        scores, scale = (scores * scale).to(scores.dtype), 1.0
    if mask is not None and mask.is_floating_point():
        scores = scores.to(torch.result_type(scores, mask))
    if kept is not None:
        return _formula(scores, mask, scale, fill, kept)
    result: Tensor = _OPERATION(scores, mask, scale=scale, fill=fill)
    return result


# The registered operators: our kernels and their gradients.


def _masked_softmax(scores: Tensor, mask: Tensor | None, scale: float, fill: float, kernel: str) -> Tensor:
    made: Tensor = _KERNELS[kernel].forward(without_broadcast(scores), mask, scale, fill)
    return made


def _masked_softmax_backward(
    gradient: Tensor, probabilities: Tensor, kept: Tensor | None, scale: float, kernel: str
) -> Tensor:
    made: Tensor = _KERNELS[kernel].backward(without_broadcast(gradient), without_broadcast(probabilities), kept, scale)
    return made


_BACKWARD = operators.define(_masked_softmax_backward, lambda gradient, probabilities, *rest: _like(probabilities))
_FORWARD = operators.define(_masked_softmax, lambda scores, *rest: _like(scores))


def _like(x: Tensor) -> Tensor:
    return empty_in_memory_order(without_broadcast(x), x.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.scale, _, ctx.kernel = inputs
    ctx.mask_like = None if mask is None else (mask.shape, mask.dtype)
    ctx.save_for_backward(output, mask if mask is not None and mask.dtype is torch.bool else None)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    probabilities, kept = ctx.saved_tensors
    to_scores = to_mask = None
    if ctx.needs_input_grad[1]:
        to_mask = _masked_scores_gradient(gradient, probabilities, kept, 1.0, ctx.kernel)
        to_scores = to_mask * ctx.scale if ctx.scale != 1 else to_mask
        shape, dtype = ctx.mask_like
        to_mask = to_mask.sum_to_size(shape).to(dtype)
    elif ctx.needs_input_grad[0]:
        to_scores = _masked_scores_gradient(gradient, probabilities, kept, ctx.scale, ctx.kernel)
    return to_scores, to_mask, None, None, None


def _masked_scores_gradient(
    gradient: Tensor, probabilities: Tensor, kept: Tensor | None, scale: float, kernel: str
) -> Tensor:
    """The gradient of the masked scores, times `scale`. If it must be differentiable itself, torch computes it."""
    if not torch.is_grad_enabled():
        result: Tensor = _BACKWARD(gradient, probabilities, kept, scale, kernel)
        return result
    found: Tensor = softmax_backward_data(gradient, probabilities, -1, gradient.dtype)
    return (found if kept is None else found.masked_fill(~kept, 0.0)) * scale


operators.differentiate(_FORWARD, _backward, _save)


def _kernel_refusal(
    scores: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fill: float | None = None
) -> str:
    """The reason why our kernels do not support a call."""
    if mask is None:
        return "torch's own kernel is as fast without a mask." if scale == 1 else ""
    if not mask.ndim or mask.shape[-1] not in (1, scores.shape[-1]) or not broadcasts_to(mask, scores):
        return "The mask is larger than the scores, or has no dimension of its own."
    if mask.device != scores.device:
        return "The mask is on another device than the scores."
    if mask.is_complex() or mask.dtype is torch.float64:
        return f"It does not add a mask of {mask.dtype}; torch does."
    if fold(without_broadcast(scores), with_contiguous_rows(without_repeats(mask))) is None:
        return "Scores and mask have more than three runs of leading dimensions in memory."
    return ""


def _by_triton(scores: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fill: float | None = None) -> Tensor:
    result: Tensor = _FORWARD(scores, mask, scale, -math.inf if fill is None else fill, "triton")
    return result


def _by_region(scores: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fill: float | None = None) -> Tensor:
    result: Tensor = _FORWARD(scores, mask, scale, -math.inf if fill is None else fill, "compiled")
    return result


# torch's code.


def _by_torch(scores: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fill: float | None = None) -> Tensor:
    plain = all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in (scores, mask))
    if torch.compiler.is_compiling() or not plain or scores.numel() < _SMALL:
        return _formula(scores, mask, scale, fill)
    result: Tensor = _MaskedSoftmax.apply(scores, mask, scale, fill)  # type: ignore[no-untyped-call]
    return result


def _formula(
    scores: Tensor, mask: Tensor | None, scale: float, fill: float | None, kept: Tensor | None = None
) -> Tensor:
    """The formula as models write it. A compiler fuses it by itself."""
    compute = torch.float32 if scores.dtype in _HALF else scores.dtype
    return torch.softmax(masked(scores.to(compute) * scale, mask, fill, kept=kept), dim=-1).to(scores.dtype)


def _scale_and_mask(scores: Tensor, mask: Tensor | None, scale: float, fill: float | None) -> Tensor:
    """scores * scale, masked, in new memory and in the dtype to compute in."""
    compute = torch.float32 if scores.dtype in _HALF else scores.dtype
    if mask is None:
        return scores.to(compute) * scale
    if mask.dtype is not torch.bool:
        return torch.add(mask.to(compute), scores.to(compute), alpha=scale)
    if fill is None and mask.numel() < scores.numel():  # a small bias is added in the pass that scales
        bias = torch.zeros(mask.shape, dtype=compute, device=mask.device).masked_fill_(~mask, -math.inf)
        return torch.add(bias, scores.to(compute), alpha=scale)
    return masked(scores.to(compute) * scale, mask, fill)


class _MaskedSoftmax(torch.autograd.Function):
    """Saves the probabilities only. The backward pass is one pass, and one in place for the scale."""

    @staticmethod
    def forward(scores: Tensor, mask: Tensor | None, scale: float, fill: float | None) -> Tensor:
        return torch.softmax(_scale_and_mask(scores, mask, scale, fill), dim=-1).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, float, float | None], output: Tensor) -> None:
        scores, mask, ctx.scale, ctx.fill = inputs
        ctx.shape, ctx.mask_like = scores.shape, None if mask is None else (mask.shape, mask.dtype)
        is_boolean = mask is not None and mask.dtype is torch.bool
        ctx.save_for_backward(output, mask if is_boolean else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        probabilities, kept = ctx.saved_tensors
        to_masked = softmax_backward_data(grad, probabilities, -1, grad.dtype)
        if kept is not None:
            # In a row that keeps nothing, dropped scores have weights (or are nan). masked_fill gives them no gradient.
            to_masked = to_masked.masked_fill(~kept, 0.0)
        to_mask = None
        if ctx.needs_input_grad[1]:
            shape, dtype = ctx.mask_like
            to_mask = to_masked.sum_to_size(shape).to(dtype)
        if not ctx.needs_input_grad[0]:
            return None, to_mask, None, None
        return (to_masked * ctx.scale if ctx.scale != 1 else to_masked).sum_to_size(ctx.shape), to_mask, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        result: Tensor = torch.vmap(_formula, in_dims)(*inputs)
        return result, 0


_OPERATION = Operation(
    "masked_softmax",
    (
        Provider(
            "masked_softmax", "triton", TRITON, _by_triton, check=_kernel_refusal, devices=("cuda",), default=True,
            summary="Scores are read once, probabilities written once; rows of any length.",
            gradient="One pass, from the probabilities; the mask's is a sum of that of the scores.",
        ),
        Provider(
            "masked_softmax", "compiled", COMPILER, _by_region, check=_kernel_refusal, devices=("cpu",), default=True,
            summary="One loop over rows that Inductor compiles.",
            gradient="One loop, from the probabilities; the mask's is a sum of that of the scores.",
        ),
        Provider(
            "masked_softmax", "torch", TORCH, _by_torch, summary="torch add or masked_fill, then softmax.",
            gradient="torch's own, from the probabilities.",
        ),
    ),
    least=_SMALL,
)  # fmt: skip
