"""FlexAttention: torch's compiled attention with a function of each score, for soft caps and masks of any kind.

On a CPU it has no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import Window
from autofuse.kernels.flex_blocks import block_mask, reader, window_block_mask
from autofuse.kernels.packages import COMPILER, load_module

_LEAST_WIDTH = 16  # of a head, for its kernels on GPUs


def refusal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> str:
    """The reason why FlexAttention does not support a call, as a sentence; "" if it does."""
    if p:
        return "It has no dropout."
    if not query.numel() or not key.numel() or not value.numel():
        return "It does not support empty operands."
    needs_backward = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if needs_backward and query.device.type == "cpu":
        return "On a CPU it has no backward pass."
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        return "Its score_mod computes no gradient for the mask."
    if query.device.type == "cpu":
        return COMPILER.missing()
    width = min(query.shape[-1], value.shape[-1])
    return "" if width >= _LEAST_WIDTH else f"It needs a head_dim of at least {_LEAST_WIDTH}, not {width}."


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float, cap: float = 0.0,
    window: Window | None = None,
) -> Tensor:  # fmt: skip
    """Attention of (B, H, T, d), (B, G, S, d) and (B, G, S, dv), masked.

    A cap of 0 means no capping. `window` says that `mask` is proven to be that window.
    """
    grouped = query.shape[1] != key.shape[1]
    modify, blocks = modifications(query, key, mask, is_causal, scale, cap, window)
    result: Tensor = _compiled_attention()(
        query, key, value, score_mod=modify, block_mask=blocks, scale=1.0, enable_gqa=grouped
    )
    return result


def modifications(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float, cap: float,
    window: Window | None = None,
) -> tuple[Callable[..., Tensor], Any]:  # fmt: skip
    """The function that changes each score, and the blocks of scores that are skipped; None if there are none."""
    blocks = None
    if window is not None:
        blocks = window_block_mask(window, query.shape[-2], query.device)
    elif mask is None or mask.dtype is torch.bool:
        blocks = block_mask(mask, is_causal, query.shape[-2], key.shape[-2], query.device)
    if blocks is not None:
        mask, is_causal = None, False
    return score_mod(mask, is_causal, scale, cap), blocks


def score_mod(mask: Tensor | None, is_causal: bool, scale: float, cap: float) -> Callable[..., Tensor]:
    """The function that changes one score of a batch, a head, a query and a key."""
    mask_at = None if mask is None else reader(mask[(None,) * (4 - mask.ndim)])

    def modify(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = score * scale
        if cap:
            score = torch.tanh(score) * cap
        if is_causal:
            score = torch.where(query >= key, score, -float("inf"))
        if mask_at is None:
            return score
        entry = mask_at(batch, head, query, key)
        return torch.where(entry, score, -float("inf")) if entry.dtype is torch.bool else score + entry

    return modify


@cache
def _compiled_attention() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(load_module("torch.nn.attention.flex_attention").flex_attention)
    return compiled
