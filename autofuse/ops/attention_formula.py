"""Attention in as few passes over memory as torch's operations allow, for small score matrices.

On CPUs whose half-precision products are faster than torch's flash kernel, this is the fastest way for small sizes.
Above them blocks are faster (attention_thresholds.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.ops.masks import causal
from autofuse.torch_private import FakeTensor


def attention_in_steps(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """softmax(scale * query @ key.mT, masked) @ value, with the whole score matrix in memory.

    Args:
        query: shape (B, H, T, d).
        key: shape (B, G, S, d), G a divisor of H.
        value: shape (B, G, S, dv).
        mask: broadcasts to (B, H, T, S); boolean or added. Excludes `is_causal`.
        is_causal: query i attends to keys 0 to i.
        scale: the factor of the scores.

    Returns:
        A tensor of shape (B, H, T, dv). Rows that keep no key are 0.
    """
    if is_causal:
        mask = causal(None, query.shape[-2], key.shape[-2], query.device)
    if query.shape[1] != key.shape[1]:
        if mask is None or mask.ndim == 4 and mask.shape[1] == mask.shape[2] == 1:
            return _attend_with_folded_heads(query, key, value, mask, scale)
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return _attend(query, key, value, mask, scale)


def _attend_with_folded_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Treats the heads that share a key as more queries of that key. The mask must be the same for these heads."""
    shape = query.shape
    query = query.reshape(shape[0], key.shape[1], -1, shape[-1])
    return _attend(query, key, value, mask, scale).view(*shape[:-1], value.shape[-1])


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if math.frexp(scale)[0] == 0.5:  # a power of two scales exactly, and the query is smaller than the scores
        query, scale = query * scale, 1.0
    scores = torch.matmul(query, key.mT)
    if mask is None:
        return torch.matmul(torch.softmax(scores * scale if scale != 1 else scores, -1), value)
    bias, empty = _bias(mask, query.dtype)
    result = torch.matmul(torch.softmax(torch.add(bias, scores, alpha=scale), -1), value)
    return result if empty is None else result.masked_fill(empty, 0.0)


def _bias(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The bias that is added to the scores, and the rows that keep no key (None if there are none).

    Those rows attend evenly until the caller sets them to 0.
    """
    if mask.dtype is torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        return torch.where(mask | empty, 0.0, -math.inf).to(dtype), empty if _any(empty) else None
    empty = mask.detach().amax(-1, keepdim=True) == -math.inf
    if not _any(empty):
        return mask.to(dtype), None
    return mask.masked_fill(empty, 0.0).to(dtype), empty


def _any(rows: Tensor) -> bool:
    """Whether any row is True. For fake tensors, whose values are unknown, False."""
    return not isinstance(rows, FakeTensor) and bool(rows.any())
