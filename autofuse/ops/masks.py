"""Attention masks: what a mask means, and the shape and dtype that a kernel needs.

A boolean mask keeps the scores where it is True. Any other mask is added to the scores.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.ops.known_masks import keeps_in_each_row


def masked(
    scores: Tensor, mask: Tensor | None = None, fill: float | None = None, mask_is_causal: bool = False,
    kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Applies a mask to scores: fills them where a boolean mask is False, or adds an additive mask.

    Args:
        scores: shape (..., T, S).
        mask: broadcasts against scores; boolean, or added. None changes nothing.
        fill: the number that replaces scores where a boolean mask is False; None means -inf.
        mask_is_causal: whether the mask is known to be causal. It changes nothing.
        kept: broadcasts against scores; where it is False, the mask is added to 0.

    Returns:
        A tensor of the shape of scores.
    """
    if mask is None:
        return scores
    if kept is not None:
        scores = scores.masked_fill(~kept, 0.0)
    return scores.masked_fill(~mask, -math.inf if fill is None else fill) if mask.dtype is torch.bool else scores + mask


def causal(mask: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor:
    """`mask` without the keys after the query's own position, where query 0 is at key 0."""
    kept = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
    if mask is None:
        return kept
    return mask & kept if mask.dtype is torch.bool else mask.masked_fill(~kept, float("-inf"))


def even_where_nothing_is_kept(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Query and boolean mask with which a row that keeps no key attends to all keys evenly, as with a finite fill.

    Such a row gets a query of zero and a mask of True. Its scores are 0, and no gradient reaches query or key.
    """
    if keeps_in_each_row(mask):
        return query, mask
    nothing_is_kept = ~mask.any(-1, keepdim=True)
    return query.masked_fill(nothing_is_kept, 0.0), mask | nothing_is_kept


def additive(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Query and additive mask, in the query's dtype, with the meaning that `mask` has in its own dtype.

    A narrower dtype could make the keys of a row equal: finfo(float32).min becomes -inf, and the steps of ALiBi vanish
    next to its large values. In every dtype, torch's kernel for CPUs computes wrong gradients for a row whose keys are
    all dropped by a large finite number.

    Softmax does not change if a constant is added to a row. So each row is shifted until its greatest entry is 0. If
    that entry is a fill next to which rounding loses the scores, the row attends evenly. A mask that requires a
    gradient and has the query's dtype stays unchanged.
    """
    fits = torch.promote_types(mask.dtype, query.dtype) == query.dtype
    if mask.shape[-1] == 0 or fits and (mask.requires_grad or not mask.dtype.is_floating_point):
        return query, mask.to(query.dtype)
    if keeps_in_each_row(mask):
        return query, mask.to(query.dtype)
    greatest = mask.detach().amax(-1, keepdim=True)
    greatest = greatest.masked_fill(greatest.isinf(), 0.0)
    # Neighbouring numbers of that size are _STEP apart, so that adding a smaller score changes nothing.
    swallows = greatest <= -_STEP / torch.finfo(mask.dtype).eps
    return query.masked_fill(swallows, 0.0), (mask - greatest).to(query.dtype)


_STEP = 64.0
