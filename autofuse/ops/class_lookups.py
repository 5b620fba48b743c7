"""Losses that look up their targets with indexing, gather or one-hot, for targets that torch's losses do not accept.

torch's losses ignore a target of -100 and reject negative classes. A program that indexes by its targets counts
negative ones from the end; one that gathers raises an error. Neither ignores any target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.ops.readable import can_look
from autofuse.torch_private import functional as F

NEVER = -(2**31)  # equals no target: the `ignore_index` for losses that ignore none
_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "index": (torch.int64, torch.int32, torch.int16, torch.int8),
    "take": (torch.int64,),
    "gather": (torch.int64, torch.int32),
    "scatter": (torch.int64, torch.int32),
    "one_hot": (torch.int64,),
}


def as_torch_target(target: Tensor, rows: int, classes: int, lookup: str, count: int | None) -> Tensor | None:
    """The targets as torch's losses accept them; negative classes are counted from the end.

    Args:
        target: class indices.
        rows: the number of rows of logits.
        classes: the number of classes.
        lookup: how the program finds the entry of a target: "index", "take", "gather", "scatter" or "one_hot".
        count: the number of rows that an index goes through; None for as many as there are targets.

    Returns:
        The targets as int64; None if the program's own lookup has to run.

    Raises:
        ValueError: if `lookup` is unknown.
    """
    if lookup not in _DTYPES:
        raise ValueError(f"A loss got the unknown lookup {lookup!r}. Use one of {', '.join(_DTYPES)}.")
    if target.dtype not in _DTYPES[lookup] or target.numel() != rows or count not in (None, rows):
        return None
    target = target.long()
    return torch.where(target < 0, target + classes, target) if lookup in ("index", "take") else target


def loss_by_lookup(
    logits: Tensor, target: Tensor, dim: int, lookup: str, count: int | None, reduction: str, label_smoothing: float
) -> Tensor:
    """The loss as the program computes it with its lookup, with the same errors."""
    dim = 0 if logits.ndim == 1 else dim
    return _loss_of_log_probs(F.log_softmax(logits, dim), target, dim, lookup, count, reduction, label_smoothing)


@torch.no_grad()
def may_underflow(logits: Tensor, dim: int) -> bool:
    """Whether a probability may be 0 or lose digits; True if reading the logits needs a synchronization."""
    if not logits.numel() or not can_look(logits):
        return True
    least, most = logits.aminmax()
    classes = logits.shape[dim if logits.ndim > 1 else 0]
    # The smallest probability is at least exp(least - most) / classes. `not <` is also true for nan.
    return not float(most - least) + math.log(classes) < -math.log(torch.finfo(logits.dtype).tiny)


def loss_of_logarithms(
    logits: Tensor, target: Tensor, dim: int, weight: Tensor | None, ignore_index: int, lookup: str | None,
    count: int | None, reduction: str, label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The loss of log(softmax(logits)), which is infinite if a probability underflows to 0."""
    dim = 0 if logits.ndim == 1 else dim
    log_probs = torch.log(torch.softmax(logits, dim))
    if lookup is not None:
        return _loss_of_log_probs(log_probs, target, dim, lookup, count, reduction, label_smoothing)
    rows = log_probs.movedim(dim, -1).reshape(-1, log_probs.shape[dim])
    loss = F.nll_loss(rows, target.reshape(-1), weight, ignore_index=ignore_index, reduction=reduction)
    if label_smoothing:
        spread = rows.mean(-1)
        spread = spread if reduction == "none" else spread.mean() if reduction == "mean" else spread.sum()
        loss = (1 - label_smoothing) * loss - label_smoothing * spread
    return loss.reshape(target.shape) if reduction == "none" else loss


def _loss_of_log_probs(
    log_probs: Tensor, target: Tensor, dim: int, lookup: str, count: int | None, reduction: str, label_smoothing: float
) -> Tensor:
    losses = -_pick(log_probs, target, dim, lookup, count)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_probs.mean(dim).reshape(losses.shape)
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def _pick(log_probs: Tensor, target: Tensor, dim: int, lookup: str, count: int | None) -> Tensor:
    classes = log_probs.shape[dim]
    if lookup == "index" or log_probs.ndim != target.ndim + 1:
        log_probs, dim = log_probs.movedim(dim, -1).reshape(-1, classes), -1
    at = target if log_probs.ndim == target.ndim + 1 else target.reshape(-1)
    if lookup == "index":
        values = log_probs[torch.arange(at.shape[0] if count is None else count, device=at.device), at]
    elif lookup == "take":
        values = torch.take_along_dim(log_probs, at.unsqueeze(dim), dim).squeeze(dim)
    elif lookup == "gather":
        values = log_probs.gather(dim, at.unsqueeze(dim)).squeeze(dim)
    elif lookup == "scatter":
        values = (torch.zeros_like(log_probs).scatter(dim, at.unsqueeze(dim), 1.0) * log_probs).sum(dim)
    else:
        values = (F.one_hot(at, classes).movedim(-1, dim) * log_probs).sum(dim)
    return values.reshape(target.shape) if values.numel() == target.numel() else values
