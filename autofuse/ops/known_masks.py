"""Finds out what attention masks contain. A mask is read once, and the result is valid until the mask is written.

A model computes one mask and passes it to each of its layers. Usually it is causal or keeps everything, and kernels
then need no mask. One read serves all layers; on a GPU it costs one synchronization. Many models slice the mask in each
layer, so what was read from one view also holds for another view of the same entries.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from autofuse.kernels.attention_layouts import Window
from autofuse.ops.readable import can_look
from autofuse.ops.watched_memory import State, state_of, watch

BIAS = -512.0  # an added number below this drops a key
_TYPES = (Tensor, nn.Buffer)
_LEAST_ON_GPU = 2**18  # entries; a smaller mask is not worth a synchronization
_WATCHED_AT_MOST = 4  # times; a mask that is written more often is read at each call
_ROWS = 512  # read together, so that a mask of another kind is recognized early


class KnownMask(NamedTuple):
    """The contents of a mask.

    Attributes:
        keeps_all: it changes no score.
        is_causal: it is square, leaves keys 0 to i unchanged for query i, and drops all others.
        fill: the greatest number that it adds to a dropped score; -inf for a boolean mask.
        keeps_in_each_row: each row leaves an entry unchanged, and raises none.
        window: (left, right) if the mask is square, leaves keys i - left to i + right unchanged for query i, and drops
            all others; None for all other masks, and for those that `keeps_all` or `is_causal` describe.
    """

    keeps_all: bool
    is_causal: bool
    fill: float
    keeps_in_each_row: bool
    window: Window | None = None


class _Read(NamedTuple):
    """The result of reading a mask.

    Attributes:
        tensor: the mask, or the tensor of which it is a view.
        state: the state of the memory when it was read.
        known: what the entries are.
        shadows: on a CPU, the other owners of the mask's memory, now and before. A program may still hold the address
            of earlier memory, so that memory lives as long as the mask.
    """

    tensor: weakref.ref[Tensor]
    state: State
    known: KnownMask
    shadows: tuple[Tensor, ...]


_read: dict[int, _Read] = {}


def known_mask(mask: Tensor) -> KnownMask | None:
    """The contents of `mask`, (..., T, S); None if it may not be read now, or requires a gradient.

    On a CPU, a mask whose memory cannot be watched for writes is read at each call.
    """
    if torch.compiler.is_compiling() or type(mask) not in _TYPES or mask.ndim < 2 or mask.requires_grad:
        return None
    if not _may_read(mask):
        return None
    return _still_known(mask) or _read_and_remember(mask)


def keeps_in_each_row(mask: Tensor) -> bool:
    """Whether `mask` was read before and each of its rows leaves a key unchanged. This does not read the mask."""
    if torch.compiler.is_compiling() or type(mask) not in _TYPES:
        return False
    known = _still_known(mask)
    return known is not None and known.keeps_in_each_row


def known_window(mask: Tensor) -> tuple[Window, float] | None:
    """The window of a mask that was read before, and its fill; None if it has none. This does not read the mask."""
    if torch.compiler.is_compiling() or type(mask) not in _TYPES:
        return None
    known = _still_known(mask)
    return None if known is None or known.window is None else (known.window, known.fill)


def _still_known(mask: Tensor) -> KnownMask | None:
    base = mask if mask._base is None else mask._base
    entry = _read.get(id(base))
    is_valid = entry is not None and entry.tensor() is base and can_look() and entry.state == state_of(mask)
    return entry.known if entry is not None and is_valid else None


def _may_read(mask: Tensor) -> bool:
    if mask.is_cpu:
        return can_look(mask)
    if not mask.is_cuda or mask.numel() < _LEAST_ON_GPU or mask.is_inference() or not can_look():
        return False
    return not torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def _read_and_remember(mask: Tensor) -> KnownMask:
    base = mask if mask._base is None else mask._base
    key, before = id(base), _read.get(id(base))
    shadows = before.shadows if before is not None and before.tensor() is base else ()
    if mask.is_cpu:  # watch before reading, so that no write in between goes unnoticed
        shadow = watch(mask) if len(shadows) < _WATCHED_AT_MOST else None
        state = () if shadow is None else state_of(mask)
        shadows, known = shadows if shadow is None else (*shadows, shadow), _read_on_cpu(mask)
    else:
        state, known = state_of(mask), _read_on_device(mask)
    if state or shadows:
        _read[key] = _Read(weakref.ref(base, _forget_with(key)), state, known, shadows)
    return known


def _forget_with(key: int) -> Callable[[object], None]:
    read = _read  # at the end of the process, names of the module are None

    def forget(_: object) -> None:
        read.pop(key, None)

    return forget


def _read_on_cpu(mask: Tensor) -> KnownMask:
    if not mask.numel():
        return KnownMask(False, False, -math.inf, False)
    entries = _without_repeats(mask)
    last_entry = entries[(0,) * (entries.ndim - 1)][-1]  # the last key of the first query
    if bool(last_entry if mask.dtype is torch.bool else last_entry == 0):
        if _keep_all(entries):
            return KnownMask(True, False, -math.inf, True)
    elif (fill := _causal_fill(entries)) is not None:
        return KnownMask(False, True, fill, True)
    if (found := _window_on_cpu(entries)) is not None:
        return KnownMask(False, False, found[1], True, found[0])
    return KnownMask(False, False, -math.inf, _keeps_in_each_row(entries))


def _window_on_cpu(entries: Tensor) -> tuple[Window, float] | None:
    """The window of a mask and its fill. The first row and column tell its size, then every entry is compared."""
    rows, columns = entries.shape[-2:]
    boolean = entries.dtype is torch.bool
    if rows != columns or rows < 2 or not (boolean or entries.dtype.is_floating_point):
        return None
    one = entries[(0,) * (entries.ndim - 2)]
    right, left = (int((line if boolean else line == 0).sum()) - 1 for line in (one[0], one[:, 0]))
    if min(left, right) < 0:
        return None
    greatest = -math.inf
    for start in range(0, rows, _ROWS):
        part = entries[..., start : start + _ROWS, :]
        band = _band(start, part.shape[-2], columns, left, right, part.device)
        if boolean:
            if not bool((part == band).all()):
                return None
            continue
        if bool(part.masked_fill(~band, 0).any()):
            return None
        greatest = max(greatest, float(part.masked_fill(band, -math.inf).amax()))
    return ((left, right), greatest) if boolean or greatest < BIAS else None


def _band(start: int, rows: int, columns: int, left: Any, right: Any, device: torch.device) -> Tensor:
    """True where query start + i attends to a key, (rows, columns). `left` and `right` are numbers or 0-d tensors."""
    ahead = torch.arange(columns, device=device) - torch.arange(start, start + rows, device=device)[:, None]
    inside: Tensor = (ahead <= right) & (ahead >= -left)
    return inside


def _without_repeats(mask: Tensor) -> Tensor:
    """The entries without those that an expanded view repeats."""
    repeated = [i for i in range(mask.ndim - 2) if mask.stride(i) == 0]
    for i in repeated:
        mask = mask.narrow(i, 0, 1)
    return mask


def _keep_all(entries: Tensor) -> bool:
    """Whether no entry changes a score."""
    return bool(entries.all()) if entries.dtype is torch.bool else not bool(entries.any())


def _keeps_in_each_row(entries: Tensor) -> bool:
    if entries.dtype is torch.bool:
        return bool(entries.any(-1).all())
    return entries.dtype.is_floating_point and bool((entries.amax(-1) == 0).all())


def _causal_fill(entries: Tensor) -> float | None:
    """The greatest number that a causal mask adds to dropped keys; None if the mask is not causal."""
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
        if not _keep_all(kept) or not _keep_all(part[..., :start]):
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


def _read_on_device(mask: Tensor) -> KnownMask:
    """Reads the contents of a mask on a GPU, with one synchronization."""
    entries = _without_repeats(mask)
    boolean = entries.dtype is torch.bool
    if not boolean and not entries.dtype.is_floating_point:
        return KnownMask(False, False, -math.inf, False)
    all_kept = entries.all() if boolean else ~entries.any()
    in_rows = entries.any(-1).all() if boolean else (entries.amax(-1) == 0).all()
    answers = [all_kept, in_rows]
    rows, columns = entries.shape[-2:]
    if rows == columns and rows > 1:
        answers += _window_on_device(entries, boolean)
        above = torch.ones(rows, rows, dtype=torch.bool, device=mask.device).triu(1)
        if boolean:
            answers += [(entries ^ above).all(), torch.full((), -math.inf, device=mask.device)]
        else:
            answers += [~entries.masked_fill(above, 0).any(), entries.masked_fill(~above, -math.inf).amax()]
    keeps_all, each_row, *square = torch.stack([a.to(torch.float64) for a in answers]).tolist()
    left, right, banded, outside, below, fill = square or (0.0,) * 6
    is_causal = bool(below) and fill < BIAS
    if not keeps_all and not is_causal and banded and min(left, right) >= 0 and outside < BIAS:
        return KnownMask(False, False, outside, bool(each_row), (int(left), int(right)))
    return KnownMask(bool(keeps_all), is_causal, fill if is_causal else -math.inf, bool(each_row))


def _window_on_device(entries: Tensor, boolean: bool) -> list[Tensor]:
    """Left and right of a window by the first row and column, whether it is one, and the greatest entry outside."""
    rows, columns = entries.shape[-2:]
    one = entries[(0,) * (entries.ndim - 2)]
    right, left = ((line if boolean else line == 0).sum() - 1 for line in (one[0], one[:, 0]))
    band = _band(0, rows, columns, left, right, entries.device)
    if boolean:
        return [left, right, (entries == band).all(), torch.full((), -math.inf, device=entries.device)]
    return [left, right, ~entries.masked_fill(~band, 0).any(), entries.masked_fill(band, -math.inf).amax()]
