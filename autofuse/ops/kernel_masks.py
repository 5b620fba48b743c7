"""Replaces the mask of an attention call by the kernel's causal path, or by no mask, if its values allow that."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import Window
from autofuse.ops.attention_operands import is_square_mask
from autofuse.ops.known_masks import KnownMask, known_mask, known_window
from autofuse.ops.lazy_masks import LazyMask, plain_mask


def as_kernels_mask(
    query: Tensor, key: Tensor, mask: Tensor, fill: float | None, negligible: Callable[[float], bool]
) -> tuple[Tensor | None, bool, float | None]:
    """The mask that a kernel needs: none if the mask's values keep everything or are causal.

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d).
        mask: boolean, or added to the scores.
        fill: the number that replaces masked scores, or None.
        negligible: whether a score to which a number was added has no weight next to the others.

    Returns:
        The mask or None, whether attention is causal, and the fill.
    """
    fits = min(query.ndim, key.ndim) >= mask.ndim >= 2 and all(
        size in (1, expected)
        for size, expected in zip(mask.shape, (*query.shape[-mask.ndim : -1], key.shape[-2]), strict=True)
    )
    known = _known_mask_of(mask) if fits else None
    if known is not None and known.keeps_all:
        return None, False, None
    if known is None or not known.is_causal or not is_square_mask(mask, query.shape[-2], key.shape[-2]):
        return plain_mask(mask), False, fill
    if mask.dtype is torch.bool:
        return None, True, fill
    if known.fill == -math.inf or negligible(known.fill):
        return None, True, None
    return plain_mask(mask), False, fill


def window_of(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, negligible: Callable[[float], bool]
) -> dict[str, Window]:
    """The argument `window` for kernels if `mask`, which was read before, is one; empty if it is not.

    Args:
        query: shape (..., T, d).
        key: shape (..., S, d).
        mask: the mask that `as_kernels_mask` returned.
        is_causal: whether attention is causal, too.
        negligible: as in `as_kernels_mask`.
    """
    if mask is None or is_causal or not is_square_mask(mask, query.shape[-2], key.shape[-2]):
        return {}
    known = known_window(mask)
    if known is None or known[1] != -math.inf and not negligible(known[1]):
        return {}
    return {"window": known[0]}


def _known_mask_of(mask: Tensor) -> KnownMask | None:
    known = mask.known_mask if isinstance(mask, LazyMask) else None
    return known_mask(plain_mask(mask)) if known is None else known
