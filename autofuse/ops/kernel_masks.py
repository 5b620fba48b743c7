"""The mask that a kernel of attention is handed: none where the one that was given is read to be causal, or keeps all.

Knows calls of attention; must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autofuse.ops.attention_operands import covers_a_square
from autofuse.ops.known_masks import KnownMask, known_mask
from autofuse.ops.lazy_masks import LazyMask, plain_mask


def as_kernels_mask(
    query: Tensor, key: Tensor, mask: Tensor, fill: float | None, negligible: Callable[[float], bool]
) -> tuple[Tensor | None, bool, float | None]:
    """Mask, whether attention is causal, and fill: no mask where it is read that it keeps all, or is causal.

    negligible: whether a score that a number was added to has no weight beside the others.
    """
    fits = min(query.ndim, key.ndim) >= mask.ndim >= 2 and all(
        have in (1, want) for have, want in zip(mask.shape, (*query.shape[-mask.ndim : -1], key.shape[-2]), strict=True)
    )
    known = _known(mask) if fits else None
    if known is not None and known.keeps_all:
        return None, False, None
    if known is None or not known.is_causal or not covers_a_square(mask, query.shape[-2], key.shape[-2]):
        return plain_mask(mask), False, fill
    if mask.dtype is torch.bool:
        return None, True, fill
    if known.fill == -math.inf or negligible(known.fill):
        return None, True, None
    return plain_mask(mask), False, fill


def _known(mask: Tensor) -> KnownMask | None:
    known = mask.known if isinstance(mask, LazyMask) else None
    return known_mask(plain_mask(mask)) if known is None else known
