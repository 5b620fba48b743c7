"""Smaller calls of the same module: fewer rows of a batch, and a shorter sequence.

What two forwards compute of a part of a call is as good a question as what they compute of all of it, and far cheaper.
Which dimensions are a batch and a sequence is guessed from sizes. Nothing rests on the guess: the smaller call is made
of both forwards, and where the original does not take it, the whole call is checked.
Knows arguments; must not know what is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autofuse.verify.other_calls import changed, tensors_of_call
from autofuse.verify.runs import ModuleCall

ROWS, LENGTH = 2, 128  # two rows tell a batch from none; masks and blocks of kernels need some length
SHORT = 64  # for a whole model, of which each part has been checked by itself


def slices(call: ModuleCall, at_most: int = LENGTH) -> Iterator[tuple[str, ModuleCall]]:
    """Smaller calls with their sizes in words, the smallest first; none where the arguments cannot be cut.

    at_most: the length of a sequence.
    """
    found = list(tensors_of_call((call.args, call.kwargs)))
    if not found or not _is_plain((call.args, call.kwargs)):
        return
    batch, length = found[0].shape[0] if found[0].ndim > 1 else 0, _length(found[0])
    rows, words = (ROWS if batch > ROWS else batch), f"{batch} rows"
    shorter = at_most if length > at_most and length != batch else length
    for to in dict.fromkeys((shorter, length)):
        if (rows, to) == (batch, length):
            continue
        cut = _cut_call(call, batch, rows, length, to)
        if cut is not None:
            words = f"{rows} of {batch} rows" if rows < batch else f"{batch} rows"
            yield words + (f", length {to} of {length}" if to < length else ""), cut


def elements(call: ModuleCall) -> int:
    """How many entries the tensors of a call have."""
    return sum(t.numel() for t in tensors_of_call((call.args, call.kwargs)))


def _length(first: Tensor) -> int:
    """The length of a sequence: of indices (batch, length), or of vectors (batch, length, size)."""
    whole = first.ndim == 2 and not first.is_floating_point() and not first.is_complex()
    return first.shape[1] if whole or first.ndim == 3 else 0


def _cut_call(call: ModuleCall, batch: int, rows: int, length: int, to: int) -> ModuleCall | None:
    """The call on the first rows and places; None where a mask would keep nothing there."""
    smaller = changed(call, lambda x: _cut(x, batch, rows, length, to))
    pairs = zip(tensors_of_call((call.args, call.kwargs)), tensors_of_call((smaller.args, smaller.kwargs)), strict=True)
    return None if any(_keeps(a) and not _keeps(b) for a, b in pairs) else smaller


def _keeps(mask: Tensor) -> bool:
    """Whether a tensor that may be a mask keeps something; those of activations always do."""
    return mask.is_floating_point() or mask.is_complex() or not mask.numel() or bool((mask != 0).any())


def _cut(x: Tensor, batch: int, rows: int, length: int, to: int) -> Tensor:
    vectors = x.ndim == 3 and x.is_floating_point()  # the last size is that of a vector, whatever number it is
    for d, size in enumerate(x.shape):
        if d == 0 and size == batch and x.ndim > 1:
            x = x.narrow(0, 0, rows)
        elif length and size == length and size > 1 and not (vectors and d == 2):
            x = x.narrow(d, 0, to)
    return x


def _is_plain(value: Any) -> bool:
    """Whether nothing in it can hold tensors that are not seen here, such as a cache of keys."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    known = isinstance(value, bool | int | float | str | torch.dtype | torch.device | type(None))
    return known or type(value) in (Tensor, torch.nn.Parameter)
