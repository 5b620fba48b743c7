"""FlexAttention: torch's attention with a function of each score, compiled; for soft caps and for masks of any kind.

Knows how that function is made and what FlexAttention refuses; must not know which operation asks. On a CPU it has no
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.flex_blocks import block_mask, reader
from autofuse.kernels.packages import COMPILER, loaded

_LEAST_WIDTH = 16  # of a head, for its kernels on GPUs


def misfit(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> str:
    """Why FlexAttention does not take a call, as a sentence; "" where it does."""
    if p:
        return "It has no dropout."
    if not query.numel() or not key.numel() or not value.numel():
        return "It takes no empty operands."
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if learns and query.device.type == "cpu":
        return "On a CPU it has no backward pass."
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        return "A mask that needs a gradient is none of its score_mod's."
    if query.device.type == "cpu":
        return COMPILER.missing()
    width = min(query.shape[-1], value.shape[-1])
    return "" if width >= _LEAST_WIDTH else f"It takes heads of at least {_LEAST_WIDTH} entries; these have {width}."


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float, cap: float = 0.0
) -> Tensor:
    """Attention of (B, H, T, d), (B, G, S, d) and (B, G, S, dv), masked, with scores below `cap` unless that is 0."""
    grouped = query.shape[1] != key.shape[1]
    modified, blocks = modifications(query, key, mask, is_causal, scale, cap)
    result: Tensor = _compiled()(
        query, key, value, score_mod=modified, block_mask=blocks, scale=1.0, enable_gqa=grouped
    )
    return result


def modifications(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float, cap: float
) -> tuple[Callable[..., Tensor], Any]:
    """What becomes of a score, and the blocks of scores that are left out; None where none are."""
    blocks = None
    if mask is None or mask.dtype is torch.bool:
        blocks = block_mask(mask, is_causal, query.shape[-2], key.shape[-2], query.device)
    if blocks is not None:
        mask, is_causal = None, False
    return score_mod(mask, is_causal, scale, cap), blocks


def score_mod(mask: Tensor | None, is_causal: bool, scale: float, cap: float) -> Callable[..., Tensor]:
    """What becomes of one score, of a batch, a head, a query and a key."""
    at = None if mask is None else reader(mask[(None,) * (4 - mask.ndim)])

    def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = score * scale
        if cap:
            score = torch.tanh(score) * cap
        if is_causal:
            score = torch.where(query >= key, score, -float("inf"))
        if at is None:
            return score
        found = at(batch, head, query, key)
        return torch.where(found, score, -float("inf")) if found.dtype is torch.bool else score + found

    return modified


@cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(loaded("torch.nn.attention.flex_attention").flex_attention)
    return compiled
