"""Cross entropy of rows of logits, spelled out in torch's functions: losses, and the gradient of the logits.

What the compiled kernel compiles, and what runs where there is no kernel. Knows rows of logits and their classes; must
not know where the logits come from. Autograd is the caller's matter.

Shapes: logits (rows, C), target int64 (rows,), weight (C,), share and all losses (rows,), in fp32 or better. A target
out of range reads no memory: its loss is nan.
"""

from __future__ import annotations

import torch
from torch import Tensor


def losses(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row, 0 where it is ignored, and the logarithm of the sum of the exponentials of its logits."""
    wide = _wide(logits)
    normalizers = _normalizers(wide)
    return _losses(wide, target, weight, normalizers, ignore_index, label_smoothing), normalizers


def gradient(
    logits: Tensor, target: Tensor, weight: Tensor | None, share: Tensor, normalizers: Tensor, ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The gradient of sum(share * losses) with respect to the logits, in their dtype."""
    wide = _wide(logits)
    return _gradient(wide, target, weight, share, normalizers, ignore_index, label_smoothing).to(logits.dtype)


def losses_and_gradient(
    logits: Tensor, target: Tensor, share: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """`losses` and `gradient` in one go, for a caller that knows each row's share and does not read the logits again.

    A kernel may write the gradient into the logits; this one does not.
    """
    wide = _wide(logits)
    normalizers = _normalizers(wide)
    made = _losses(wide, target, None, normalizers, ignore_index, label_smoothing)
    change = _gradient(wide, target, None, share, normalizers, ignore_index, label_smoothing)
    return made, change.to(logits.dtype)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def _normalizers(logits: Tensor) -> Tensor:
    """nan where a logit is inf or nan, or all are -inf: there is no softmax."""
    largest = logits.amax(-1, keepdim=True)
    return (torch.exp(logits - largest).sum(-1, keepdim=True).log() + largest).squeeze(-1)


def _losses(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    normalizers: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    counted, valid = target != ignore_index, (target >= 0) & (target < logits.shape[-1])
    wanted = torch.where(valid, target, 0).unsqueeze(-1)
    loss = normalizers - torch.where(valid, logits.gather(-1, wanted).squeeze(-1), torch.nan)
    if weight is not None:
        loss = loss * weight.to(logits.dtype)[wanted.squeeze(-1)]
    if label_smoothing:
        loss = loss * (1 - label_smoothing) + _smooth(logits, weight, normalizers) * label_smoothing
    return torch.where(counted, loss, 0.0)


def _smooth(logits: Tensor, weight: Tensor | None, normalizers: Tensor) -> Tensor:
    """The mean over classes of their weighted losses."""
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
    counted = target != ignore_index
    share = torch.where(counted, share, 0.0)
    wide = None if weight is None else weight.to(logits.dtype)
    of_target = share * (1 - label_smoothing)
    whole = share
    if wide is not None:
        of_target = of_target * wide[target.clamp(0, classes - 1)]
        whole = of_target + share * (wide.sum() * (label_smoothing / classes))
    change = torch.exp(logits - normalizers.unsqueeze(-1)) * whole.unsqueeze(-1)
    if label_smoothing:
        even = share.unsqueeze(-1) * (label_smoothing / classes)
        change = change - (even if wide is None else even * wide)
    hit = torch.arange(classes, device=logits.device) == target.unsqueeze(-1)
    change = torch.where(hit, change - of_target.unsqueeze(-1), change)
    return torch.where(counted.unsqueeze(-1), change, 0.0)  # not a product: 0 * nan is nan
