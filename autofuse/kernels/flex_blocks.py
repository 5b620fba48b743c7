"""Finds the blocks of scores that a mask drops, in FlexAttention's form. FlexAttention never computes those.

Causal masks and windows follow from their lengths and are made once for each. Any other boolean mask is read: which
blocks keep nothing, which keep everything, and which need the mask for each entry. Documents are such masks. A model
passes one mask to all its layers, so on a GPU it is read again only after a write that autograd counts. On a CPU, where
other code may write without being noticed, it is read at every call.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.kernels.attention_layouts import Window
from autofuse.kernels.packages import load_module
from autofuse.torch_private import functional as F

BLOCK = 128
_FLEX = "torch.nn.attention.flex_attention"


def block_mask(mask: Tensor | None, is_causal: bool, queries: int, keys: int, device: torch.device) -> Any:
    """A BlockMask for a boolean mask that broadcasts to (B, H, queries, keys), or for a causal one.

    None if there is no mask or there are few blocks, or if this version of torch needs lengths that blocks divide.
    """
    if min(queries, keys) < 2 * BLOCK or (mask is None and not is_causal):
        return None
    if not _supports_lengths() and (queries % BLOCK or keys % BLOCK):
        return None
    if mask is None:
        return _causal_block_mask(queries, keys, device)
    return None if is_causal else _block_mask_of(mask.expand(*mask.shape[:-2], queries, keys), queries, keys)


@lru_cache(maxsize=64)
def _causal_block_mask(queries: int, keys: int, device: torch.device) -> Any:
    return load_module(_FLEX).create_block_mask(_is_causal, None, None, queries, keys, device)


def window_block_mask(window: Window, length: int, device: torch.device) -> Any:
    """A BlockMask for a window of as many keys as queries. None as in `block_mask`."""
    if length < 2 * BLOCK or not _supports_lengths() and length % BLOCK:
        return None
    return _window_block_mask(window, length, device)


@lru_cache(maxsize=64)
def _window_block_mask(window: Window, length: int, device: torch.device) -> Any:
    left, right = window

    def is_inside(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= query - left) & (key <= query + right)

    return load_module(_FLEX).create_block_mask(is_inside, None, None, length, length, device)


def _is_causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


class _Blocks(NamedTuple):
    """The blocks of a mask that was read.

    Attributes:
        tensor: the mask, or the tensor of which it is a view.
        state: equal as long as no write was counted.
        blocks: a BlockMask without its mask_mod, which would keep the mask alive.
    """

    tensor: weakref.ref[Tensor]
    state: tuple[object, ...]
    blocks: Any


_READ: dict[int, _Blocks] = {}  # by the id of the tensor


def _block_mask_of(mask: Tensor, queries: int, keys: int) -> Any:
    mask = mask[(None,) * (4 - mask.ndim)]
    base = mask if mask._base is None else mask._base
    if base.is_cpu or type(base) is not Tensor or base.is_inference():
        return _with_entries(_read_blocks(mask, queries, keys), mask)
    state = (base._version, mask.storage_offset(), mask.shape, mask.stride(), base.untyped_storage()._cdata)
    known = _READ.get(id(base))
    if known is None or known.tensor() is not base or known.state != state:
        known = _Blocks(weakref.ref(base, _forget_with(id(base))), state, _read_blocks(mask, queries, keys))
        _READ[id(base)] = known
    return _with_entries(known.blocks, mask)


def _forget_with(key: int) -> Callable[[object], None]:
    read = _READ  # at the end of the process, names of the module are None

    def forget(_: object) -> None:
        read.pop(key, None)

    return forget


def _with_entries(blocks: Any, mask: Tensor) -> Any:
    """The blocks, with the entries of `mask` for those that need them."""
    made = copy.copy(blocks)
    made.mask_mod = reader(mask)
    return made


def _read_blocks(mask: Tensor, queries: int, keys: int) -> Any:
    """A BlockMask for a mask of four dimensions, without its entries."""
    rest = (-keys % BLOCK, -queries % BLOCK)
    padded = F.pad(mask, (0, rest[0], 0, rest[1])) if any(rest) else mask
    rows, columns = (padded.shape[i] // BLOCK for i in (-2, -1))
    blocks = padded.reshape(*padded.shape[:2], rows, BLOCK, columns, BLOCK)
    kept = blocks.any(-1).any(-2)
    full = blocks.all(-1).all(-2)
    counts_and_indices = (*_counts_and_indices(kept & ~full), *_counts_and_indices(full))
    options = {"seq_lengths": (queries, keys)} if _supports_lengths() else {}
    return load_module(_FLEX).BlockMask.from_kv_blocks(*counts_and_indices, BLOCK_SIZE=BLOCK, **options)


def _counts_and_indices(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks in each row of blocks, and the indices of the blocks, these first."""
    places = torch.argsort(blocks.to(torch.int32), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), places.to(torch.int32)


def reader(mask: Tensor) -> Callable[..., Tensor]:
    """A function that returns an entry of a mask of four dimensions. Dimensions of size 1 broadcast."""
    is_broadcast = tuple(size == 1 for size in mask.shape)

    def at(*places: Any) -> Tensor:
        return mask[
            tuple(place * 0 if broadcast else place for place, broadcast in zip(places, is_broadcast, strict=True))
        ]

    return at


@cache
def _supports_lengths() -> bool:
    return "seq_lengths" in inspect.signature(load_module(_FLEX).BlockMask.from_kv_blocks).parameters
