"""Attention by kernels that take (batch, length, heads, head_dim), and no mask but a causal one.

Knows which calls of `autofuse.ops.attention` such kernels can take and how operands are brought to them and back; must
not know whose kernel attends. Ours is causal from the top left, theirs from the bottom right: they agree where there
are as many keys as queries, and keys beyond the last query are cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.requirements import first, lowered, one_dtype

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (batch, length, heads, head_dim), three times


def attendable(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: Any, is_causal: bool, mask_is_causal: bool
) -> str:
    """Why such kernels do not take a call, as a sentence; "" where they do."""
    if not isinstance(scale, (int, float)):
        return "It takes a number as scale."
    if not query.ndim == key.ndim == value.ndim == 4:
        return "It takes (batch, heads, length, head_dim)."
    if mask is not None and not covers(mask, query, key, mask_is_causal):
        return "It takes no mask but a causal one."
    if (is_causal or mask is not None) and query.shape[2] > key.shape[2]:
        return "It is causal from the bottom right: with more queries than keys that is another mask."
    return first(_sizes(query, key, value), one_dtype(query, key, value), lowered(query))


def _sizes(query: Tensor, key: Tensor, value: Tensor) -> str:
    batch, heads, _, width = query.shape
    if key.shape[-1] != width or key.shape[:3] != value.shape[:3]:
        return "It takes keys as wide as queries, and as many values as keys."
    if key.shape[0] != batch or key.shape[1] == 0 or heads % key.shape[1]:
        return "It takes keys for every batch, and a number of heads that those of the query divide into."
    return "" if query.numel() and key.numel() and value.numel() else "It takes no empty operands."


def covers(mask: Tensor | None, query: Tensor, key: Tensor, mask_is_causal: bool) -> bool:
    """Whether a mask that is proved to be causal where it is square is so here."""
    sizes = (query.shape[-2], key.shape[-2])
    return mask_is_causal and mask is not None and tuple(mask.shape[-2:]) == sizes and sizes[0] == sizes[1]


def by_heads(attend: Attend, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, even: bool = True) -> Tensor:
    """`attend` on operands laid out for it, its result laid out as ours. `even`: values have to be as wide as keys."""
    if is_causal and key.shape[2] > query.shape[2]:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    width = value.shape[-1]
    if even and width != query.shape[-1]:
        query, key, value = _as_wide(max(width, query.shape[-1]), query, key, value)
    result = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)).transpose(1, 2)
    return result if result.shape[-1] == width else result[..., :width]


def _as_wide(width: int, *operands: Tensor) -> tuple[Tensor, ...]:
    """Zeros beside the narrower change neither scores nor the other entries of the result."""
    return tuple(F.pad(t, (0, width - t.shape[-1])) for t in operands)


# Packed sequences.


def packed_misfit(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool
) -> str:
    """Why kernels of packed sequences do not take a call; lengths are on the device, and not looked at."""
    if not query.ndim == key.ndim == value.ndim == 3 or key.shape != value.shape or key.shape[-1] != query.shape[-1]:
        return "It takes (tokens, heads, head_dim), keys and values of one shape."
    if not key.shape[1] or query.shape[1] % key.shape[1] or not query.numel() or not key.numel():
        return "It takes a number of heads that those of the query divide into, and some tokens."
    if cu_seqlens_q.dtype is not torch.int32 or cu_seqlens_k.dtype is not torch.int32:
        return "It takes cumulative lengths in int32."
    if is_causal and cu_seqlens_q is not cu_seqlens_k:
        return "It is causal from the bottom right: it takes one tensor of lengths for queries and keys."
    return first(one_dtype(query, key, value), lowered(query))
