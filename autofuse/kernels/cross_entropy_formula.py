"""Cross entropy of rows of logits in torch's functions: losses, and the gradient of the logits.

The compiled kernel compiles these functions, and they run where there is no kernel. They have no autograd.

Shapes: logits (rows, C), target int64 (rows,), weight (C,), share and all losses (rows,), in fp32 or fp64. A target out
of range reads no memory, and its loss is nan.
"""

from __future__ import annotations

import torch
from torch import Tensor


def losses(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row (0 if it is ignored) and the log-sum-exp of its logits."""
    wide = _to_wide_dtype(logits)
    normalizers = _normalizers(wide)
    return _losses(wide, target, weight, normalizers, ignore_index, label_smoothing), normalizers


def gradient(
    logits: Tensor, target: Tensor, weight: Tensor | None, share: Tensor, normalizers: Tensor, ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The gradient of sum(share * losses) with respect to the logits, in the dtype of the logits."""
    wide = _to_wide_dtype(logits)
    return _gradient(wide, target, weight, share, normalizers, ignore_index, label_smoothing).to(logits.dtype)


def losses_and_gradient(
    logits: Tensor, target: Tensor, share: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """`losses` and `gradient` together, if the share of each row is known and the logits are not read again.

    A kernel may write the gradient into the logits. This function does not.
    """
    wide = _to_wide_dtype(logits)
    normalizers = _normalizers(wide)
    losses_of_rows = _losses(wide, target, None, normalizers, ignore_index, label_smoothing)
    gradient_of_logits = _gradient(wide, target, None, share, normalizers, ignore_index, label_smoothing)
    return losses_of_rows, gradient_of_logits.to(logits.dtype)


def _to_wide_dtype(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def _normalizers(logits: Tensor) -> Tensor:
    """The log-sum-exp of each row; nan if a logit is inf or nan, or all are -inf, because there is no softmax then."""
    largest = logits.amax(-1, keepdim=True)  # subtracted, so that no exponential overflows
    return (torch.exp(logits - largest).sum(-1, keepdim=True).log() + largest).squeeze(-1)


def _losses(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    normalizers: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    counts, valid = target != ignore_index, (target >= 0) & (target < logits.shape[-1])
    class_or_0 = torch.where(valid, target, 0).unsqueeze(-1)  # gather would read out of bounds on a GPU
    loss = normalizers - torch.where(valid, logits.gather(-1, class_or_0).squeeze(-1), torch.nan)
    if weight is not None:
        loss = loss * weight.to(logits.dtype)[class_or_0.squeeze(-1)]
    if label_smoothing:
        loss = loss * (1 - label_smoothing) + _smooth(logits, weight, normalizers) * label_smoothing
    return torch.where(counts, loss, 0.0)


def _smooth(logits: Tensor, weight: Tensor | None, normalizers: Tensor) -> Tensor:
    """The mean over the classes of their weighted losses."""
    if weight is None:
        return normalizers - logits.sum(-1) / logits.shape[-1]
    wide = weight.to(logits.dtype)
    return (normalizers * wide.sum() - (logits * wide).sum(-1)) / logits.shape[-1]


def _gradient(
    logits: Tensor, target: Tensor, weight: Tensor | None, share: Tensor, normalizers: Tensor, ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """share * (a * softmax(logits) - (1 - smoothing) * weight[target] * one_hot(target) - smoothing / C * weight)."""
    classes = logits.shape[-1]
    counts = target != ignore_index
    share = torch.where(counts, share, 0.0)
    wide = None if weight is None else weight.to(logits.dtype)
    of_target = share * (1 - label_smoothing)
    factor = share
    if wide is not None:
        of_target = of_target * wide[target.clamp(0, classes - 1)]
        factor = of_target + share * (wide.sum() * (label_smoothing / classes))
    gradient_of_logits = torch.exp(logits - normalizers.unsqueeze(-1)) * factor.unsqueeze(-1)
    if label_smoothing:
        even = share.unsqueeze(-1) * (label_smoothing / classes)
        gradient_of_logits = gradient_of_logits - (even if wide is None else even * wide)
    is_target = torch.arange(classes, device=logits.device) == target.unsqueeze(-1)
    gradient_of_logits = torch.where(is_target, gradient_of_logits - of_target.unsqueeze(-1), gradient_of_logits)
    return torch.where(counts.unsqueeze(-1), gradient_of_logits, 0.0)  # where, not a product: 0 * nan is nan
