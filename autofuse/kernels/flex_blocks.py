"""Which blocks of scores a mask leaves out, as FlexAttention takes it: those are never computed.

A causal mask is known by its lengths and made once for each. Any other boolean mask is read: one pass over it says
which blocks keep nothing, which keep all, and in which the mask is asked entry by entry. That is done at every call, so
that a mask that was written into meanwhile is no other mask; it costs little beside the scores. Windows and documents
are such masks. Knows masks; must not know which operation asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.packages import loaded

BLOCK = 128
_FLEX = "torch.nn.attention.flex_attention"


def block_mask(mask: Tensor | None, is_causal: bool, queries: int, keys: int, device: torch.device) -> Any:
    """A BlockMask for a boolean mask that broadcasts to (B, H, queries, keys), or a causal one; None for none.

    Also None where this torch takes no lengths that blocks do not divide, and where there are few blocks.
    """
    if min(queries, keys) < 2 * BLOCK or (mask is None and not is_causal):
        return None
    if not _takes_lengths() and (queries % BLOCK or keys % BLOCK):
        return None
    if mask is None:
        return _causal(queries, keys, device)
    return None if is_causal else _read(mask.expand(*mask.shape[:-2], queries, keys), queries, keys)


@lru_cache(maxsize=64)
def _causal(queries: int, keys: int, device: torch.device) -> Any:
    return loaded(_FLEX).create_block_mask(_is_causal, None, None, queries, keys, device)


def _is_causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _read(mask: Tensor, queries: int, keys: int) -> Any:
    mask = mask[(None,) * (4 - mask.ndim)]
    rest = (-keys % BLOCK, -queries % BLOCK)
    padded = F.pad(mask, (0, rest[0], 0, rest[1])) if any(rest) else mask
    rows, columns = (padded.shape[i] // BLOCK for i in (-2, -1))
    blocks = padded.reshape(*padded.shape[:2], rows, BLOCK, columns, BLOCK)
    kept = blocks.any(-1).any(-2)
    whole = blocks.all(-1).all(-2)
    given = (*_ordered(kept & ~whole), *_ordered(whole))
    more = {"seq_lengths": (queries, keys)} if _takes_lengths() else {}
    return loaded(_FLEX).BlockMask.from_kv_blocks(*given, BLOCK_SIZE=BLOCK, mask_mod=reader(mask), **more)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row of blocks there are, and their places, before those of the others."""
    places = torch.argsort(blocks.to(torch.int32), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), places.to(torch.int32)


def reader(mask: Tensor) -> Callable[..., Tensor]:
    """The entry of a mask of four dimensions; those of size 1 count for all."""
    one = tuple(size == 1 for size in mask.shape)

    def at(*places: Any) -> Tensor:
        return mask[tuple(place * 0 if alone else place for place, alone in zip(places, one, strict=True))]

    return at


@cache
def _takes_lengths() -> bool:
    return "seq_lengths" in inspect.signature(loaded(_FLEX).BlockMask.from_kv_blocks).parameters
