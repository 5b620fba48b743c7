"""What a loss that looks its targets up by hand makes of targets that torch's losses do not take as they are.

torch's losses ignore a target of -100 and know no class below 0. A program that indexes by its targets counts negative
ones from the end, one that gathers raises, and neither ignores any. Must not know how a loss is computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NEVER = -(2**31)  # no target: what is given as `ignore_index` where none is ignored
_TAKEN: dict[str, tuple[torch.dtype, ...]] = {
    "index": (torch.int64, torch.int32, torch.int16, torch.int8),
    "take": (torch.int64,),
    "gather": (torch.int64, torch.int32),
    "scatter": (torch.int64, torch.int32),
    "one_hot": (torch.int64,),
}


def as_torch_takes(target: Tensor, rows: int, classes: int, lookup: str, count: int | None) -> Tensor | None:
    """`target` for torch's losses, negative ones counted from the end; None where the lookup has to be made itself.

    `count` is how many rows an index goes through, None for as many as there are targets. Raises ValueError for another
    `lookup` than index, take, gather, scatter and one_hot.
    """
    if lookup not in _TAKEN:
        raise ValueError(f"A loss was asked for the lookup {lookup!r}. Use one of {', '.join(_TAKEN)}.")
    if target.dtype not in _TAKEN[lookup] or target.numel() != rows or count not in (None, rows):
        return None
    target = target.long()
    return torch.where(target < 0, target + classes, target) if lookup in ("index", "take") else target


def looked_up(
    logits: Tensor, target: Tensor, dim: int, lookup: str, count: int | None, reduction: str, label_smoothing: float
) -> Tensor:
    """The loss as such a program computes it, its errors and all."""
    dim = 0 if logits.ndim == 1 else dim
    log_probs = F.log_softmax(logits, dim)
    losses = -_picked(log_probs, target, dim, lookup, count)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_probs.mean(dim).reshape(losses.shape)
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def _picked(log_probs: Tensor, target: Tensor, dim: int, lookup: str, count: int | None) -> Tensor:
    classes = log_probs.shape[dim]
    if lookup == "index" or log_probs.ndim != target.ndim + 1:
        log_probs, dim = log_probs.movedim(dim, -1).reshape(-1, classes), -1
    at = target if log_probs.ndim == target.ndim + 1 else target.reshape(-1)
    if lookup == "index":
        picked = log_probs[torch.arange(at.shape[0] if count is None else count, device=at.device), at]
    elif lookup == "take":
        picked = torch.take_along_dim(log_probs, at.unsqueeze(dim), dim).squeeze(dim)
    elif lookup == "gather":
        picked = log_probs.gather(dim, at.unsqueeze(dim)).squeeze(dim)
    elif lookup == "scatter":
        picked = (torch.zeros_like(log_probs).scatter(dim, at.unsqueeze(dim), 1.0) * log_probs).sum(dim)
    else:
        picked = (F.one_hot(at, classes).movedim(-1, dim) * log_probs).sum(dim)
    return picked.reshape(target.shape) if picked.numel() == target.numel() else picked
