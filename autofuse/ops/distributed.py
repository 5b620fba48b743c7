"""Fused kernels on DTensors: torch has no rule for some of them, though each rank could run one on its own part.

Knows DTensors by what they have (`to_local`, `placements`), so that torch.distributed need not be imported. Must not
know why tensors are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def is_distributed(x: Tensor) -> bool:
    """Whether `x` is a DTensor."""
    return type(x).__name__ == "DTensor" and hasattr(x, "to_local")


def attention_on_parts(kernel: Kernel, query: Any, key: Any, value: Any, mask: Any) -> Tensor | None:
    """`kernel(query, key, value, mask)` of each rank's own batches and heads, as a DTensor again.

    Shapes: (batch, heads, length, width), the mask as scaled_dot_product_attention takes it. None where the operands
    are split otherwise, or the mask would have to be split as they are: the formula itself is left to torch then.
    """
    placements = query.placements
    if not all(is_distributed(t) and t.placements == placements for t in (key, value)):
        return None
    split = {p.dim for p in placements if p.is_shard()}
    if split - {0, 1} or any(not (p.is_shard() or p.is_replicate()) for p in placements):
        return None
    if mask is not None:
        if any(mask.ndim == 4 and mask.shape[d] != 1 for d in split):
            return None
        if is_distributed(mask):
            if not all(p.is_replicate() for p in mask.placements):
                return None
            mask = mask.to_local()
    local = kernel(query.to_local(), key.to_local(), value.to_local(), mask)
    shape = (*query.shape[:-1], value.shape[-1])
    stride = (shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1)
    made: Tensor = type(query).from_local(
        local, query.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
    return made


def attention_by_formula(
    query: Any, key: Any, value: Any, mask: Tensor | None, p: float, causal: bool, scale: float
) -> Tensor:
    """The same in the operations of which torch has rules for DTensors, however these are split."""
    if query.shape[1] != key.shape[1]:
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    scores = torch.matmul(query, key.mT) * scale
    if causal:
        rows = torch.arange(scores.shape[-2], device=scores.device)
        keys = torch.arange(scores.shape[-1], device=scores.device)
        mask = keys <= rows[:, None]
    if mask is not None:
        mask = mask if is_distributed(mask) else _everywhere(mask, query)
        scores = torch.where(mask, scores, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(F.dropout(weights, p, training=True) if p else weights, value)


def _everywhere(x: Tensor, like: Any) -> Tensor:
    """A tensor that every rank has, as a DTensor."""
    whole = [torch.distributed.tensor.Replicate()] * len(like.placements)
    made: Tensor = type(like).from_local(x, like.device_mesh, whole, run_check=False)
    return made
