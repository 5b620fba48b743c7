"""Brings the operands of attention to the form that fused kernels accept.

That form has one dtype, four dimensions, one mask, and a number as scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.kernels.operation import is_eager
from autofuse.ops.distributed import is_distributed
from autofuse.ops.masks import additive, causal, even_where_nothing_is_kept
from autofuse.torch_private.autocast import is_autocast_on


class Operands(NamedTuple):
    """The operands of one call. A mask and `is_causal` exclude each other.

    Attributes:
        query: shape (B, H, T, d).
        key: shape (B, G, S, d), G a divisor of H.
        value: shape (B, G, S, dv).
        mask: broadcasts to (B, H, T, S); None if there is none.
        is_causal: query i attends to keys 0 to i.
        scale: the factor of the scores.
        batch: the leading dimensions of the result.
        dtype: the dtype of the result.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float
    batch: torch.Size
    dtype: torch.dtype

    def restore(self, result: Tensor) -> Tensor:
        """Brings a kernel's result, (B, H, T, dv), to the shape and dtype that the caller expects."""
        if len(self.batch) != 2:
            result = result.reshape(*self.batch, *result.shape[-2:])
            if not result.requires_grad and is_eager():  # a program may call detach_, which raises for a view
                result = result.detach()
        return result.to(self.dtype)


def operands(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | Tensor, is_causal: bool,
    fill: float | None, mask_is_causal: bool,
) -> Operands:  # fmt: skip
    """The arguments of `autofuse.ops.attention` in the form that kernels accept.

    Raises:
        ValueError: if the scale differs from key to key.
    """
    query, number = _apply_tensor_scale(query, scale)
    compute, result = dtypes_of(query, key, value)
    query, key, value = query.to(compute), key.to(compute), value.to(compute)
    if mask_is_causal and mask is not None and is_square_mask(mask, query.shape[-2], key.shape[-2]):
        mask, is_causal = None, True
    if mask is not None:
        if is_causal:
            mask, is_causal = causal(mask, query.shape[-2], key.shape[-2], query.device), False
        mask = mask.reshape((1,) * (2 - mask.ndim) + mask.shape)
        if mask.dtype is not torch.bool:
            query, mask = additive(query, mask)
        elif fill is not None:
            query, mask = even_where_nothing_is_kept(query, mask)
    if _fits(query, key, value, mask):  # the usual case: nothing has to broadcast
        return Operands(query, key, value, mask, is_causal, number, query.shape[:-2], result)
    query, key, value, mask, batch = _bring_to_four_dimensions(query, key, value, mask)
    return Operands(query, key, value, mask, is_causal, number, batch, result)


def is_square_mask(mask: Tensor, queries: int, keys: int) -> bool:
    """Whether there are as many keys as queries, and the mask has an entry for each pair."""
    return queries == keys and mask.shape[-2:] == (queries, keys)


def _apply_tensor_scale(query: Tensor, scale: float | Tensor) -> tuple[Tensor, float]:
    """The query multiplied by the scale if that is a tensor, and the number that remains as scale.

    Raises:
        ValueError: if the scale differs from key to key.
    """
    if not isinstance(scale, Tensor):
        return query, scale
    if scale.ndim and scale.shape[-1] != 1:
        raise ValueError(
            f"attention got a scale of shape {tuple(scale.shape)}, which differs from key to key. The fused kernel "
            "has one scale for all keys of a query. Multiply the key by the scale, or give it a last size of 1."
        )
    return (query * scale).to(query.dtype), 1.0


def compute_dtype(query: Tensor, key: Tensor, value: Tensor) -> torch.dtype:
    """The dtype in which attention of these operands is computed."""
    return dtypes_of(query, key, value)[0]


def dtypes_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype of the result, as two matmuls of hand-written code have them.

    Autocast applies to both, except in float64.
    """
    compute = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    device = query.device.type
    if compute is torch.float64 or not is_autocast_on(device):
        return compute, value.dtype
    lowered = torch.get_autocast_dtype(device)
    return lowered, lowered


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether all operands have four dimensions and equal batches and heads, and the mask broadcasts to them.

    Several heads of the query may share each head of keys and values.
    """
    leading, of_keys = query.shape[:-2], key.shape[:-2]
    if len(leading) != 2 or value.shape[:-2] != of_keys:
        return False
    shared = of_keys != leading
    if shared and (len(of_keys) != 2 or of_keys[0] != leading[0] or not _are_groups(query, key, value)):
        return False
    if mask is None or mask.ndim == 2 and not shared:
        return True
    return mask.ndim == 4 and mask.shape[0] in (1, leading[0]) and mask.shape[1] in (1, leading[1])


def _bring_to_four_dimensions(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
    """Flattens leading dimensions to batch and heads. A key that several heads share is not repeated."""
    leading = [t.shape[:-2] for t in (query, key, value)]
    if mask is not None:
        leading.append(mask.shape[:-2])
    groups = _are_groups(query, key, value)
    if groups:
        leading[1], leading[2] = (shape[:-1] + query.shape[-3:-2] for shape in leading[1:3])
    batch = torch.broadcast_shapes(*leading)  # type: ignore[no-untyped-call]
    heads = key.shape[-3:-2] if groups else batch[-1:]
    query = _as_four_dimensions(query.expand(*batch, *query.shape[-2:]))
    key, value = (_as_four_dimensions(t.expand(*batch[:-1], *heads, *t.shape[-2:])) for t in (key, value))
    if mask is not None:
        mask = _as_four_dimensional_mask(mask, batch)
    return query, key, value, mask, batch


def _are_groups(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether several heads of the query share each head of keys and values."""
    if min(query.ndim, key.ndim, value.ndim) < 3:
        return False
    heads, groups = query.shape[-3], key.shape[-3]
    return 0 < groups < heads and heads % groups == 0 and value.shape[-3] == groups


def with_heads(query: Tensor, key: Tensor, value: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """Keys and values, each head repeated `repeats` times; unchanged if kernels can read shared heads."""
    heads = query.shape[-3] if query.ndim >= 3 else 0
    if not is_distributed(query) and all(x.ndim >= 3 and x.shape[-3] * repeats == heads for x in (key, value)):
        return key, value
    return key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)


def _as_four_dimensions(t: Tensor) -> Tensor:
    if t.ndim == 4:
        return t
    return t[(None,) * (4 - t.ndim)] if t.ndim < 4 else t.flatten(0, -4)


def _as_four_dimensional_mask(mask: Tensor, batch: torch.Size) -> Tensor:
    """A mask in four dimensions. A leading dimension that broadcasts is not expanded unless a later one needs it."""
    if mask.ndim <= 4 and len(batch) <= 2:
        return mask if mask.ndim == 2 else _as_four_dimensions(mask)
    leading, leading_of_mask = batch[:-1], mask.shape[:-3]
    if leading_of_mask.numel() != 1:
        mask = mask.expand(*leading, *mask.shape[-3:])
    return (
        _as_four_dimensions(mask)
        if leading_of_mask.numel() != 1 or mask.ndim <= 4
        else mask.reshape(1, *mask.shape[-3:])
    )
