"""Attention on DTensors: torch has no rule for some fused kernels, but each rank can run one on its own part.

A DTensor is recognized by its attributes (`to_local`, `placements`), so that torch.distributed need not be imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private import functional as F

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def is_distributed(x: Tensor) -> bool:
    """Whether `x` is a DTensor."""
    return type(x).__name__ == "DTensor" and hasattr(x, "to_local")


def attention_on_parts(kernel: Kernel, query: Any, key: Any, value: Any, mask: Any) -> Tensor | None:
    """`kernel(query, key, value, mask)` on each rank's own batches and heads, as a DTensor again.

    Args:
        kernel: computes attention of plain tensors.
        query: shape (batch, heads, length, head_dim).
        key: as `query`.
        value: as `query`.
        mask: as scaled_dot_product_attention accepts it, or None.

    Returns:
        The result; None if the operands are sharded in other dimensions or the mask would have to be sharded too. Then
        the caller uses the formula.
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
    result: Tensor = type(query).from_local(
        local, query.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
    return result


def attention_by_formula(
    query: Any, key: Any, value: Any, mask: Tensor | None, p: float, causal: bool, scale: float
) -> Tensor:
    """The same computation in operations for which torch has DTensor rules, for any sharding."""
    if query.shape[1] != key.shape[1]:
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    scores = torch.matmul(query, key.mT) * scale
    if causal:
        rows = torch.arange(scores.shape[-2], device=scores.device)
        keys = torch.arange(scores.shape[-1], device=scores.device)
        mask = keys <= rows[:, None]
    if mask is not None:
        mask = mask if is_distributed(mask) else _replicate(mask, query)
        scores = torch.where(mask, scores, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(F.dropout(weights, p, training=True) if p else weights, value)


def _replicate(x: Tensor, like: Any) -> Tensor:
    """A tensor that every rank has, as a replicated DTensor."""
    placements = [torch.distributed.tensor.Replicate()] * len(like.placements)
    result: Tensor = type(like).from_local(x, like.device_mesh, placements, run_check=False)
    return result
