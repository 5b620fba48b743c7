"""Attention masks: what a mask means, and the shape and dtype that a kernel takes.

A boolean mask keeps the scores where it is True; any other is added to them. Must not know which kernel is used.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """`scores` where a boolean `mask` is True and -inf elsewhere; their sum, for an additive mask.

    Shapes: scores (..., T, S), `mask` broadcasts against them.
    """
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask


def causal(mask: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor:
    """`mask`, and no key after the query's own position, the first query beside the first key."""
    kept = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
    if mask is None:
        return kept
    return mask & kept if mask.dtype is torch.bool else mask.masked_fill(~kept, float("-inf"))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive `mask` in `dtype`, which may change each row by a constant: softmax does not see it.

    A narrower dtype would lose what tells a row's keys apart: finfo(float32).min becomes -inf, and steps of ALiBi
    vanish beside its large values. So each row is first moved to where its greatest entry is 0.
    """
    if mask.dtype == dtype:
        return mask
    if torch.promote_types(mask.dtype, dtype) == dtype:
        return mask.to(dtype)
    greatest = mask.detach().to(torch.promote_types(mask.dtype, torch.float32)).amax(-1, keepdim=True)
    return (mask - greatest.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)).to(dtype)
