"""Losses of lazy logits with class weights, or whose target is a distribution over the classes: distillation's KL.

The logits are computed in blocks of rows, as for the losses of losses.py, which calls these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.fx.lazy.nodes import Step
from autofuse.fx.lazy.steps import numbers_of
from autofuse.fx.lazy.tensor import LazyLogits
from autofuse.kernels.class_targets import out_of_range
from autofuse.ops.row_losses import weighed_rows

_REDUCTIONS = ("mean", "sum", "none")
Operands = tuple[Tensor, Tensor, Tensor | None]  # rows (..., D), weight (V, D), bias (V,)


def weighted_cross_entropy(
    x: LazyLogits, operands: Operands, target: Any, weight: Any, ignore_index: int, reduction: str, smoothing: float
) -> Tensor | None:
    """F.cross_entropy of logits (N, V, ...) with a weight (V,) for each class; None for calls that torch computes.

    The mean is weighted by the weights of the targets. The mean of no row is nan, as in torch.
    """
    if not _is_classes(x, target, ignore_index, reduction) or not _is_constant(weight, (x.shape[1],), x):
        return None
    wide = _wide_dtype(x.dtype)
    classes, targets = weight.to(wide), target.reshape(-1)
    of_row = partial(
        F.cross_entropy, weight=classes, ignore_index=ignore_index, label_smoothing=smoothing, reduction="none"
    )
    counts = targets != ignore_index
    # An ignored target may be out of range, so it reads the weight of class 0, and counts 0 times.
    total = (classes[targets.where(counts, 0)] * counts).sum() if reduction == "mean" else None
    return _reduce_by_blocks(x, operands, targets, of_row, reduction, total, target.shape)


def cross_entropy_of_probabilities(
    x: LazyLogits, operands: Operands, target: Any, reduction: str, smoothing: float
) -> Tensor | None:
    """F.cross_entropy of logits (N, V, ...) with probabilities of that shape; None for calls that torch computes."""
    if x.node.axis != 1 or reduction not in _REDUCTIONS or not _is_constant(target, tuple(x.shape), x):
        return None
    of_row = partial(F.cross_entropy, label_smoothing=smoothing, reduction="none")
    rows = _rows_of(target, 1)
    total = torch.full((), float(rows.shape[0]), device=x.device) if reduction == "mean" else None
    return _reduce_by_blocks(x, operands, rows, of_row, reduction, total, (x.shape[0], *x.shape[2:]))


def kl_divergence(
    x: LazyLogits, operands: Operands, target: Any, reduction: str, log_target: bool
) -> Tensor | None:  # fmt: skip
    """F.kl_div of log-probabilities (..., V) and a target of that shape; None for calls that torch computes."""
    axis = x.node.axis
    if axis is None or reduction not in ("batchmean", "mean", "sum") or x.ndim < 2:
        return None
    if not _is_constant(target, tuple(x.shape), x):
        return None
    divisor = {"batchmean": x.shape[0], "mean": x.numel(), "sum": 1}[reduction]
    total = torch.full((), float(divisor), device=x.device)

    def of_row(logits: Tensor, part: Tensor) -> Tensor:
        found = F.kl_div(F.log_softmax(logits, -1), part.to(logits.dtype), reduction="none", log_target=log_target)
        return found.sum(-1)

    return _reduce_by_blocks(x, operands, _rows_of(target, axis), of_row, "mean", total, ())


def result_dtype(x: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> torch.dtype:
    """The dtype of torch's result, which follows from the dtypes and from autocast."""
    with torch.no_grad():
        # torch itself answers, on one row of one class.
        few = torch.zeros(1, 1, dtype=x.dtype, device=x.device)
        other = torch.zeros((1, 1) if target.is_floating_point() else (1,), dtype=target.dtype, device=x.device)
        return loss(few, other).dtype


def _reduce_by_blocks(
    x: LazyLogits, operands: Operands, target: Tensor, of_row: Callable[[Tensor, Tensor], Tensor], reduction: str,
    total: Tensor | None, shape: tuple[int, ...],
) -> Tensor:  # fmt: skip
    given, weight, bias = operands
    steps: tuple[Step, ...] = numbers_of(x.node.steps)
    rows = given.reshape(-1, given.shape[-1])
    made = weighed_rows(steps, rows, weight, bias, target, of_row, total, reduction != "none")
    return made.reshape(shape) if reduction == "none" else made


def _is_classes(x: LazyLogits, target: Any, ignore_index: int, reduction: str) -> bool:
    if type(target) is not Tensor or target.dtype is not torch.int64 or target.device != x.device:
        return False
    if x.ndim < 2 or x.node.axis != 1 or tuple(target.shape) != (x.shape[0], *x.shape[2:]) or not target.numel():
        return False
    return reduction in _REDUCTIONS and out_of_range(target, x.shape[1], ignore_index) is None


def _is_constant(value: Any, shape: tuple[int, ...], x: Tensor) -> bool:
    """Whether a value is a plain tensor of this shape and of the logits' dtype that requires no gradient."""
    if type(value) is not Tensor or value.requires_grad or not value.numel():
        return False
    return tuple(value.shape) == shape and value.dtype is x.dtype and value.device == x.device


def _rows_of(target: Tensor, axis: int) -> Tensor:
    return target.movedim(axis, -1).reshape(-1, target.shape[axis])


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
