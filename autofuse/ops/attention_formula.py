"""Attention spelled out in as few passes over memory as torch's own operations allow: for small matrices of scores.

Where a CPU multiplies matrices of half precision faster than torch's flash kernel does, this is the fastest up to sizes
at which blocks are. Knows matrices; must not know which calls come here.
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
    """softmax(scale * query @ key.mT, masked) @ value, with the matrix of scores formed.

    Shapes: query (B, H, T, d), key (B, G, S, d), value (B, G, S, dv), G a divisor of H; the result is (B, H, T, dv).
    mask: broadcasts to (B, H, T, S), boolean or added; not together with `is_causal`. Rows that keep no key give 0.
    """
    if is_causal:
        mask = causal(None, query.shape[-2], key.shape[-2], query.device)
    if query.shape[1] != key.shape[1]:
        if mask is None or mask.ndim == 4 and mask.shape[1] == mask.shape[2] == 1:
            return _folded(query, key, value, mask, scale)
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return _attended(query, key, value, mask, scale)


def _folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Heads that share a key are more queries of it, where a mask does not tell them apart."""
    shape = query.shape
    query = query.reshape(shape[0], key.shape[1], -1, shape[-1])
    return _attended(query, key, value, mask, scale).view(*shape[:-1], value.shape[-1])


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if math.frexp(scale)[0] == 0.5:  # a power of two scales without rounding, and the query is the smaller
        query, scale = query * scale, 1.0
    scores = torch.matmul(query, key.mT)
    if mask is None:
        return torch.matmul(torch.softmax(scores * scale if scale != 1 else scores, -1), value)
    bias, empty = _bias(mask, query.dtype)
    result = torch.matmul(torch.softmax(torch.add(bias, scores, alpha=scale), -1), value)
    return result if empty is None else result.masked_fill(empty, 0.0)


def _bias(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """What is added to scores, and the rows that keep no key, if any: they attend evenly until they are set to 0."""
    if mask.dtype is torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        return torch.where(mask | empty, 0.0, -math.inf).to(dtype), empty if _any(empty) else None
    empty = mask.detach().amax(-1, keepdim=True) == -math.inf
    if not _any(empty):
        return mask.to(dtype), None
    return mask.masked_fill(empty, 0.0).to(dtype), empty


def _any(rows: Tensor) -> bool:
    """Whether one of them is true; on paper, where nobody knows, none is."""
    return not isinstance(rows, FakeTensor) and bool(rows.any())
