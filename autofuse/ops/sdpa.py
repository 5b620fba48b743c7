"""Attention in torch's scaled_dot_product_attention.

Knows what that function takes, and what makes it leave its fused kernel for the unfused formula: on CPU a query or mask
of three dimensions, a value of another width than the key, a last dimension that is not contiguous, dropout, a mask
that needs a gradient. All but the last two are put right here. Must not know where its operands come from.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.derivatives import beyond_kernels, differentiable_twice, unfused
from autofuse.ops.masks import additive, causal, even_where_nothing_is_kept
from autofuse.ops.parts import attention_by_formula, attention_on_parts, is_distributed


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | Tensor = 1.0,
    dropout_p: float = 0.0, training: bool = False, is_causal: bool = False, fill: float | None = None,
    mask_is_causal: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.mT * scale, masked) @ value, never forming the (query x key) matrix.

    Shapes: query (..., T, d), key (..., S, d), value (..., S, dv); leading dimensions broadcast as in matmul, and the
    result is (..., T, dv) in value's dtype.
    mask: broadcasts to (..., T, S); boolean (True attends) or added to the scores.
    scale: a number, or a tensor that broadcasts to (..., T, 1), which gets its gradient.
    dropout_p: weights are dropped with this probability while `training`.
    is_causal: query i attends to keys 0 to i (with T != S too).
    fill: None: a row that keeps no key gives 0. A number: dropped scores were filled with it, so that such a row
    attends to all keys evenly, whatever its query.
    mask_is_causal: `mask` is proved to keep exactly keys 0 to i for query i wherever its last sizes are T == S; there
    the kernel's own causal path takes its place.

    Source: Vaswani et al., arXiv:1706.03762; the kernel is Dao's, arXiv:2307.08691. The derivatives that the kernel
    does not have, forward mode and those of gradients, are taken of the unfused formula (derivatives.py).
    Raises ValueError for a scale that differs from key to key.
    """
    query, scale = _scaled(query, scale)
    compute, result = _dtypes(query, key, value)
    query, key, value = query.to(compute), key.to(compute), value.to(compute)
    if mask_is_causal and mask is not None and _covers_a_square(mask, query.shape[-2], key.shape[-2]):
        mask, is_causal = None, True
    if mask is not None:
        if is_causal:
            mask, is_causal = causal(mask, query.shape[-2], key.shape[-2], query.device), False
        mask = mask.reshape((1,) * (2 - mask.ndim) + mask.shape)
        if mask.dtype is not torch.bool:
            query, mask = additive(query, mask)
        elif fill is not None:
            query, mask = even_where_nothing_is_kept(query, mask)
    return _on_four_dimensions(query, key, value, mask, dropout_p if training else 0.0, is_causal, scale).to(result)


def _covers_a_square(mask: Tensor, queries: int, keys: int) -> bool:
    return queries == keys and mask.shape[-2:] == (queries, keys)


def _scaled(query: Tensor, scale: float | Tensor) -> tuple[Tensor, float]:
    """The query that has taken up a scale which is a tensor, and the number that is left."""
    if not isinstance(scale, Tensor):
        return query, scale
    if scale.ndim and scale.shape[-1] != 1:
        raise ValueError(
            f"attention was given a scale of shape {tuple(scale.shape)}, which differs from key to key: the "
            "fused kernel takes one scale for all keys of a query. Multiply the key by it, or give it a last size of 1."
        )
    return (query * scale).to(query.dtype), 1.0


def _dtypes(query: Tensor, key: Tensor, value: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes to compute in and to return: those of the two matmuls of hand-written code, under autocast too."""
    compute = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    device = query.device.type
    if compute is torch.float64 or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return compute, value.dtype
    lowered = torch.get_autocast_dtype(device)
    return lowered, lowered


def _on_four_dimensions(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    """The fused kernels take (batch, heads, length, width) only: other leading dimensions become two, and come back."""
    if _fits(query, key, value, mask):  # the usual case, in which nothing has to be broadcast
        return _on_equal_widths(query, key, value, mask, p, is_causal, scale)
    operands = (query, key, value) if mask is None else (query, key, value, mask)
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in operands))  # type: ignore[no-untyped-call]
    query, key, value = (_four(t.expand(*batch, *t.shape[-2:])) for t in (query, key, value))
    if mask is not None:
        mask = _four_mask(mask, batch)
    result = _on_equal_widths(query, key, value, mask, p, is_causal, scale)
    return result if len(batch) == 2 else result.reshape(*batch, *result.shape[-2:])


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the operands have four dimensions and equal leading ones, to which the mask broadcasts."""
    leading = query.shape[:-2]
    if len(leading) != 2 or key.shape[:-2] != leading or value.shape[:-2] != leading:
        return False
    if mask is None or mask.ndim == 2:
        return True
    return mask.ndim == 4 and mask.shape[0] in (1, leading[0]) and mask.shape[1] in (1, leading[1])


def _four(t: Tensor) -> Tensor:
    if t.ndim == 4:
        return t
    return t[(None,) * (4 - t.ndim)] if t.ndim < 4 else t.flatten(0, -4)


def _four_mask(mask: Tensor, batch: torch.Size) -> Tensor:
    """Where all but the last leading dimension broadcast, the mask keeps its size."""
    if mask.ndim <= 4 and len(batch) <= 2:
        return mask if mask.ndim == 2 else _four(mask)
    leading, own = batch[:-1], mask.shape[:-3]
    if own.numel() != 1:
        mask = mask.expand(*leading, *mask.shape[-3:])
    return _four(mask) if own.numel() != 1 or mask.ndim <= 4 else mask.reshape(1, *mask.shape[-3:])


def _on_equal_widths(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    """The fused kernels take keys and values of one width only: zeros beside the narrower change nothing."""
    missing = query.shape[-1] - value.shape[-1]
    if missing == 0:
        return _native(query, key, value, mask, p, is_causal, scale)
    if missing < 0:
        return _native(F.pad(query, (0, -missing)), F.pad(key, (0, -missing)), value, mask, p, is_causal, scale)
    return _native(query, key, F.pad(value, (0, missing)), mask, p, is_causal, scale)[..., : value.shape[-1]]


def _native(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    if beyond_kernels(query, key, value) or mask is not None and _needs_gradient_below(mask):
        return unfused(query, key, value, mask, p, is_causal, scale)
    if type(query) is not Tensor and is_distributed(query):
        return _on_parts(query, key, value, mask, p, is_causal, scale)
    return differentiable_twice(F.scaled_dot_product_attention(query, key, value, mask, p, is_causal, scale=scale))


def _on_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
) -> Tensor:
    """The kernel on each rank's part; dropout is left to torch, which knows how ranks draw."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return _native(query, key, value, mask, p, is_causal, scale)

    found = attention_on_parts(kernel, query, key, value, mask) if p == 0.0 else None
    return attention_by_formula(query, key, value, mask, p, is_causal, scale) if found is None else found


def _needs_gradient_below(mask: Tensor) -> bool:
    """Whether a tensor of vmap's, which never says so, stands for one that needs a gradient, which no kernel gives."""
    if torch.compiler.is_compiling():
        return False
    while torch._C._functorch.is_batchedtensor(mask):
        mask = torch._C._functorch.get_unwrapped(mask)
        if mask.requires_grad:
            return True
    return False
