"""The order of a tensor's dimensions in memory, for guards."""

from __future__ import annotations

from torch import Tensor


def order_in_memory(x: Tensor) -> tuple[int, ...]:
    """The dimensions in descending order of their strides. An expanded dimension counts from the end, below zero."""
    strides = x.stride()
    order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
    return tuple(d if strides[d] or x.shape[d] == 1 else d - len(strides) for d in order)
