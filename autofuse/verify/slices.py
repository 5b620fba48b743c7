"""Smaller calls of the same module: fewer rows of a batch, and a shorter sequence.

Comparing two forwards on a part of a call is as meaningful as on the whole call, and much cheaper. The sizes suggest
which dimensions are batch and sequence. A wrong guess does no harm: both forwards get the smaller call, and the whole
call is checked if the original does not accept it. This file handles only arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autofuse.verify.other_calls import change_tensors, find_tensors
from autofuse.verify.runs import ModuleCall

ROWS, LENGTH = 2, 128  # two rows show whether rows are mixed; masks and kernel blocks need some length
SHORT = 64  # the length for a whole model, after its parts have been checked one by one


def smaller_calls(call: ModuleCall, max_length: int = LENGTH) -> Iterator[tuple[str, ModuleCall]]:
    """Yield smaller calls with a description of their size, the smallest first; none if the arguments cannot be cut.

    Args:
        call: the whole call.
        max_length: the maximum length of a sequence.
    """
    tensors = list(find_tensors((call.args, call.kwargs)))
    if not tensors or not _is_plain((call.args, call.kwargs)):
        return
    batch, length = tensors[0].shape[0] if tensors[0].ndim > 1 else 0, _sequence_length(tensors[0])
    rows, size_text = (ROWS if batch > ROWS else batch), f"{batch} rows"
    shorter = max_length if length > max_length and length != batch else length
    for to in dict.fromkeys((shorter, length)):
        if (rows, to) == (batch, length):
            continue
        cut = _cut_call(call, batch, rows, length, to)
        if cut is not None:
            size_text = f"{rows} of {batch} rows" if rows < batch else f"{batch} rows"
            yield size_text + (f", length {to} of {length}" if to < length else ""), cut


def count_elements(call: ModuleCall) -> int:
    """Return the number of entries in the tensors of a call."""
    return sum(t.numel() for t in find_tensors((call.args, call.kwargs)))


def _sequence_length(first: Tensor) -> int:
    """The length of a sequence: of indices (batch, length), or of vectors (batch, length, size); 0 if there is none."""
    is_indices = first.ndim == 2 and not first.is_floating_point() and not first.is_complex()
    return first.shape[1] if is_indices or first.ndim == 3 else 0


def _cut_call(call: ModuleCall, batch: int, rows: int, length: int, to: int) -> ModuleCall | None:
    """The call with the first rows and positions; None if a mask would keep nothing there."""
    smaller = change_tensors(call, lambda x: _cut_tensor(x, batch, rows, length, to))
    pairs = zip(find_tensors((call.args, call.kwargs)), find_tensors((smaller.args, smaller.kwargs)), strict=True)
    return None if any(_keeps_something(a) and not _keeps_something(b) for a, b in pairs) else smaller


def _keeps_something(mask: Tensor) -> bool:
    """Whether a tensor, read as a mask, keeps something; a floating-point tensor always does."""
    return mask.is_floating_point() or mask.is_complex() or not mask.numel() or bool((mask != 0).any())


def _cut_tensor(x: Tensor, batch: int, rows: int, length: int, to: int) -> Tensor:
    vectors = x.ndim == 3 and x.is_floating_point()  # the last dimension is a vector, even if its size equals `length`
    for dim, size in enumerate(x.shape):
        if dim == 0 and size == batch and x.ndim > 1:
            x = x.narrow(0, 0, rows)
        elif length and size == length and size > 1 and not (vectors and dim == 2):
            x = x.narrow(dim, 0, to)
    return x


def _is_plain(value: Any) -> bool:
    """Whether a value cannot contain hidden tensors, as a key-value cache does."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    is_scalar = isinstance(value, bool | int | float | str | torch.dtype | torch.device | type(None))
    return is_scalar or type(value) in (Tensor, torch.nn.Parameter)
