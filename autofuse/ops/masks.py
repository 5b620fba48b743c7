"""Attention masks: what a mask means, and the shape and dtype that a kernel takes.

A boolean mask keeps the scores where it is True; any other is added to them. Must not know which kernel is used.
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
    """`scores` where a boolean `mask` is True and `fill` (-inf if None) elsewhere; their sum, for an additive mask.

    Shapes: scores (..., T, S), `mask` and `kept` broadcast against them. `mask_is_causal` says what is known of the
    mask and changes nothing. kept: where it is False, the sum is that of 0 and the mask.
    """
    if mask is None:
        return scores
    if kept is not None:
        scores = scores.masked_fill(~kept, 0.0)
    return scores.masked_fill(~mask, -math.inf if fill is None else fill) if mask.dtype is torch.bool else scores + mask


def causal(mask: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor:
    """`mask`, and no key after the query's own position, the first query beside the first key."""
    kept = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
    if mask is None:
        return kept
    return mask & kept if mask.dtype is torch.bool else mask.masked_fill(~kept, float("-inf"))


def even_where_nothing_is_kept(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Query and boolean mask with which a row that keeps no key attends to all of them evenly, as under a finite fill.

    Such a row gets a query of zero and an open mask: its scores are 0, and no gradient reaches query or key.
    """
    if keeps_in_each_row(mask):
        return query, mask
    nothing_is_kept = ~mask.any(-1, keepdim=True)
    return query.masked_fill(nothing_is_kept, 0.0), mask | nothing_is_kept


def additive(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Query and additive mask in the query's dtype that mean what `mask` meant in its own.

    A narrower dtype would lose what tells a row's keys apart: finfo(float32).min becomes -inf, and the steps of ALiBi
    vanish beside its large values. In any dtype, torch's kernel for CPU gives a row whose keys are all dropped by a
    large finite number wrong gradients. Softmax does not see a constant added to a row, so each row is first moved to
    where its greatest entry is 0. Where that entry is a fill, beside which scores are rounded away, the row attends
    evenly. A mask that needs its own gradient in the query's dtype stays as it is.
    """
    fits = torch.promote_types(mask.dtype, query.dtype) == query.dtype
    if mask.shape[-1] == 0 or fits and (mask.requires_grad or not mask.dtype.is_floating_point):
        return query, mask.to(query.dtype)
    if keeps_in_each_row(mask):
        return query, mask.to(query.dtype)
    greatest = mask.detach().amax(-1, keepdim=True)
    greatest = greatest.masked_fill(greatest.isinf(), 0.0)
    # Numbers of that size lie _STEP apart: scores, being smaller, add nothing.
    swallows = greatest <= -_STEP / torch.finfo(mask.dtype).eps
    return query.masked_fill(swallows, 0.0), (mask - greatest).to(query.dtype)


_STEP = 64.0
