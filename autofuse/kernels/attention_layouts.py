"""Attention with kernels that take (batch, length, heads, head_dim) and support causal masks and windows only.

`autofuse.ops.attention` is causal from the top left, these kernels from the bottom right. Both agree if the numbers of
queries and keys are equal. With more keys, the keys after the last query are cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.requirements import autocast_dtype, first_refusal, one_dtype
from autofuse.torch_private import functional as F

Window = tuple[int, int]  # query i attends to keys i - left to i + right, if there are as many keys as queries
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (batch, length, heads, head_dim), three times


def attention_refusal(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: Any, is_causal: bool, mask_is_causal: bool,
    window: Window | None = None,
) -> str:  # fmt: skip
    """The reason why such kernels do not support a call, as a sentence; "" if they do.

    `window` says that `mask` is proven to be that window. The kernel then needs no mask.
    """
    if not isinstance(scale, (int, float)):
        return "It needs a number as scale."
    if not query.ndim == key.ndim == value.ndim == 4:
        return "It takes (batch, heads, length, head_dim)."
    if mask is not None and window is None and not is_square_causal(mask, query, key, mask_is_causal):
        return "It supports causal masks and windows only."
    if (is_causal or mask is not None) and query.shape[2] > key.shape[2]:
        return "It aligns causal masks at the bottom right, which differs if there are more queries than keys."
    return first_refusal(_sizes(query, key, value), one_dtype(query, key, value), autocast_dtype(query))


def _sizes(query: Tensor, key: Tensor, value: Tensor) -> str:
    batch, heads, _, width = query.shape
    if key.shape[-1] != width or key.shape[:3] != value.shape[:3]:
        return "It needs keys as wide as queries, and as many values as keys."
    if key.shape[0] != batch or key.shape[1] == 0 or heads % key.shape[1]:
        return "It needs keys for every batch, and query heads that are a multiple of the key heads."
    return "" if query.numel() and key.numel() and value.numel() else "It does not support empty operands."


def is_square_causal(mask: Tensor | None, query: Tensor, key: Tensor, mask_is_causal: bool) -> bool:
    """Whether a mask is causal here. `mask_is_causal` says that it is proven to be causal if it is square."""
    sizes = (query.shape[-2], key.shape[-2])
    return mask_is_causal and mask is not None and tuple(mask.shape[-2:]) == sizes and sizes[0] == sizes[1]


def attend_by_heads(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, equal_widths: bool = True
) -> Tensor:
    """`attend` on operands in its layout, and its result in ours. `equal_widths`: values must be as wide as keys."""
    if is_causal and key.shape[2] > query.shape[2]:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    width = value.shape[-1]
    if equal_widths and width != query.shape[-1]:
        query, key, value = _pad_to_width(max(width, query.shape[-1]), query, key, value)
    result = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)).transpose(1, 2)
    return result if result.shape[-1] == width else result[..., :width]


def _pad_to_width(width: int, *operands: Tensor) -> tuple[Tensor, ...]:
    """Pads the last dimension with zeros. Zeros change neither the scores nor the other entries of the result."""
    return tuple(F.pad(t, (0, width - t.shape[-1])) for t in operands)


# Packed sequences.


def packed_refusal(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool
) -> str:
    """The reason why kernels of packed sequences do not support a call. Lengths are on the device and are not read."""
    if not query.ndim == key.ndim == value.ndim == 3 or key.shape != value.shape or key.shape[-1] != query.shape[-1]:
        return "It takes (tokens, heads, head_dim), with keys and values of one shape."
    if not key.shape[1] or query.shape[1] % key.shape[1] or not query.numel() or not key.numel():
        return "It needs tokens, and query heads that are a multiple of the key heads."
    if cu_seqlens_q.dtype is not torch.int32 or cu_seqlens_k.dtype is not torch.int32:
        return "It needs cumulative lengths in int32."
    if is_causal and cu_seqlens_q is not cu_seqlens_k:
        return "It aligns causal masks at the bottom right: it needs the same tensor of lengths for queries and keys."
    return first_refusal(one_dtype(query, key, value), autocast_dtype(query))
