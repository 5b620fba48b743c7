"""What a mask is that is handed to attention: read once, and known to all who get it until somebody writes to it.

A model makes its mask and hands it to each of its layers. It is mostly a causal one, or keeps all: then kernels need
none. One reading serves all layers, and on a GPU it is one wait. What was read of a view holds for another view of the
same entries, since many models slice the mask in each layer. Knows masks; must not know which kernel is called.
"""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autofuse.ops.readable import can_look
from autofuse.ops.watched_memory import State, state_of, watched

BIAS = -512.0  # what is added and lies below this drops a key
_TYPES = (Tensor, nn.Buffer)
_LEAST_ON_GPU = 2**18  # entries; a smaller mask is not worth the wait
_WATCHED_AT_MOST = 4  # times; what is written more often is read at each call
_ROWS = 512  # that are looked at together, so that a mask of another kind is seen soon


class KnownMask(NamedTuple):
    """What was read in a mask.

    keeps_all: it changes no score. is_causal: it is square, keeps keys 0 to i for query i as they are, and drops all
    others. fill: the greatest number that is added where it drops, -inf for a boolean mask. keeps_in_each_row: each row
    has an entry that is kept as it is, and none that is raised.
    """

    keeps_all: bool
    is_causal: bool
    fill: float
    keeps_in_each_row: bool


class _Read(NamedTuple):
    """`known` of the entries of `of` that lie as `state` says.

    shadows: the other owners of its memory on a CPU, now and before. Somebody may still hold the address of memory that
    it had, so that lives as long as the mask.
    """

    of: weakref.ref[Tensor]
    state: State
    known: KnownMask
    shadows: tuple[Tensor, ...]


_read: dict[int, _Read] = {}


def known_mask(mask: Tensor) -> KnownMask | None:
    """What `mask`, (..., T, S), is known to be; None where nobody may read it now, and where it learns.

    A mask on a CPU whose memory cannot be watched for writes is read at each call.
    """
    if torch.compiler.is_compiling() or type(mask) not in _TYPES or mask.ndim < 2 or mask.requires_grad:
        return None
    if not _may_read(mask):
        return None
    return _still_known(mask) or _remembered(mask)


def keeps_in_each_row(mask: Tensor) -> bool:
    """Whether `mask` was read, and each of its rows keeps a key as it is; a mask that nobody read is not read here."""
    if torch.compiler.is_compiling() or type(mask) not in _TYPES:
        return False
    known = _still_known(mask)
    return known is not None and known.keeps_in_each_row


def _still_known(mask: Tensor) -> KnownMask | None:
    whole = mask if mask._base is None else mask._base
    found = _read.get(id(whole))
    stands = found is not None and found.of() is whole and can_look() and found.state == state_of(mask)
    return found.known if found is not None and stands else None


def _may_read(mask: Tensor) -> bool:
    if mask.is_cpu:
        return can_look(mask)
    if not mask.is_cuda or mask.numel() < _LEAST_ON_GPU or mask.is_inference() or not can_look():
        return False
    return not torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def _remembered(mask: Tensor) -> KnownMask:
    whole = mask if mask._base is None else mask._base
    key, before = id(whole), _read.get(id(whole))
    shadows = before.shadows if before is not None and before.of() is whole else ()
    if mask.is_cpu:  # it is watched before it is read: nobody writes in between unseen
        shadow = watched(mask) if len(shadows) < _WATCHED_AT_MOST else None
        state = () if shadow is None else state_of(mask)
        shadows, known = shadows if shadow is None else (*shadows, shadow), _on_cpu(mask)
    else:
        state, known = state_of(mask), _on_device(mask)
    if state or shadows:
        _read[key] = _Read(weakref.ref(whole, lambda _: _forget(key)), state, known, shadows)
    return known


def _forget(key: int) -> None:
    _read.pop(key, None)


def _on_cpu(mask: Tensor) -> KnownMask:
    if not mask.numel():
        return KnownMask(False, False, -math.inf, False)
    entries = _once(mask)
    corner = entries[(0,) * (entries.ndim - 1)][-1]  # the last key of the first query
    if bool(corner if mask.dtype is torch.bool else corner == 0):
        keeps_all = _keeps(entries)
        return KnownMask(keeps_all, False, -math.inf, keeps_all or _keeps_in_each_row(entries))
    fill = _causal_fill(entries)
    if fill is None:
        return KnownMask(False, False, -math.inf, _keeps_in_each_row(entries))
    return KnownMask(False, True, fill, True)


def _once(mask: Tensor) -> Tensor:
    """The entries without those that a view repeats."""
    repeated = [i for i in range(mask.ndim - 2) if mask.stride(i) == 0]
    for i in repeated:
        mask = mask.narrow(i, 0, 1)
    return mask


def _keeps(entries: Tensor) -> bool:
    """Whether none of them changes a score."""
    return bool(entries.all()) if entries.dtype is torch.bool else not bool(entries.any())


def _keeps_in_each_row(entries: Tensor) -> bool:
    if entries.dtype is torch.bool:
        return bool(entries.any(-1).all())
    return entries.dtype.is_floating_point and bool((entries.amax(-1) == 0).all())


def _causal_fill(entries: Tensor) -> float | None:
    """The greatest number that is added where keys are dropped, if the mask is causal."""
    rows, columns = entries.shape[-2:]
    if rows != columns or rows < 2 or not (entries.dtype is torch.bool or entries.dtype.is_floating_point):
        return None
    greatest = -math.inf
    for start in range(0, rows, _ROWS):
        end = min(start + _ROWS, rows)
        part = entries[..., start:end, :]
        square = part[..., start:end]
        above = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
        kept = square | above if square.dtype is torch.bool else square.masked_fill(above, 0)
        if not _keeps(kept) or not _keeps(part[..., :start]):
            return None
        for dropped in (square.masked_fill(~above, 0 if square.dtype is torch.bool else -math.inf), part[..., end:]):
            if dropped.dtype is torch.bool and bool(dropped.any()):
                return None
            if dropped.dtype is not torch.bool and dropped.numel():
                most = float(dropped.amax())
                if not most < BIAS:
                    return None
                greatest = max(greatest, most)
    return greatest


def _on_device(mask: Tensor) -> KnownMask:
    """The same with one wait."""
    entries = _once(mask)
    boolean = entries.dtype is torch.bool
    if not boolean and not entries.dtype.is_floating_point:
        return KnownMask(False, False, -math.inf, False)
    all_kept = entries.all() if boolean else ~entries.any()
    in_rows = entries.any(-1).all() if boolean else (entries.amax(-1) == 0).all()
    asked = [all_kept, in_rows]
    rows, columns = entries.shape[-2:]
    if rows == columns and rows > 1:
        above = torch.ones(rows, rows, dtype=torch.bool, device=mask.device).triu(1)
        if boolean:
            asked += [(entries ^ above).all(), torch.full((), -math.inf, device=mask.device)]
        else:
            asked += [~entries.masked_fill(above, 0).any(), entries.masked_fill(~above, -math.inf).amax()]
    keeps_all, each_row, *square = torch.stack([a.to(torch.float32) for a in asked]).tolist()
    below, fill = square or (0.0, 0.0)
    is_causal = bool(below) and fill < BIAS
    return KnownMask(bool(keeps_all), is_causal, fill if is_causal else -math.inf, bool(each_row))
