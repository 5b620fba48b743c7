"""Bytes that one call of an operator reads and writes, and which calls move nothing.

Knows operators by their schemas, and how tensors lie in memory; must not know what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private import HigherOrderOperator
from autofuse.torch_private.nested import tensors_in

_ALLOCATIONS = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ set_ _unsafe_view lift_fresh "
    "detach_ record_stream is_pinned".split()
)  # fmt: skip
_READ_AS_THEY_GIVE = frozenset(  # of the first operand no more than what comes out
    "embedding index index_select gather take nll_loss_forward nll_loss2d_forward _unsafe_index multinomial".split()
)
_UNREAD = {  # operands that only say how large something is, or that are overwritten, by position
    **dict.fromkeys(
        "zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full fill_ zero_ copy_ bernoulli_ "
        "uniform_ normal_ exponential_ random_ log_normal_ geometric_ cauchy_ new_empty".split(),
        (0,),
    ),
    "nll_loss_backward": (1,),
    "nll_loss2d_backward": (1,),
}


def is_silent(function: Any, tensors: tuple[Tensor, ...], result: Any) -> bool:
    """Whether an operator computes and moves nothing: it allocates, asks, or gives another view."""
    if isinstance(function, HigherOrderOperator):
        return False
    if function._opname in _ALLOCATIONS:
        return True
    if _writes(function):
        return False
    made = tuple(tensors_in(result))
    if not made:  # a number, as of item() or of a size
        return True
    given = {_storage(t) for t in tensors}
    return all(_storage(t) in given for t in made)


@cache
def _writes(function: Any) -> tuple[str, ...]:
    """The names of the arguments that an operator writes into."""
    return tuple(a.name for a in function._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def _names(function: Any) -> tuple[str, ...]:
    return tuple(a.name for a in function._schema.arguments)


def moved(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """What is read once and what is written once. What is written in place is read too, but for mere overwriting."""
    written = {id(t): t for t in tensors_in(result)}
    if isinstance(function, HigherOrderOperator):
        return sum(_size(t) for t in (*tensors_in((args, tuple(kwargs.values()))), *written.values()))
    given = {**dict(zip(_names(function), args, strict=False)), **kwargs}
    for name in _writes(function):
        written |= {id(t): t for t in tensors_in(given.get(name))}
    unread = _UNREAD.get(function._opname, ())
    read: dict[int, int] = {}
    for place, (name, value) in enumerate(given.items()):
        if place in unread or name == "out":
            continue
        for tensor in tensors_in(value):
            read[id(tensor)] = _size(tensor)
    if function._opname in _READ_AS_THEY_GIVE and args and id(args[0]) in read:
        read[id(args[0])] = min(read[id(args[0])], sum(map(_size, written.values())))
    return sum(read.values()) + sum(map(_size, written.values()))


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor's distinct elements: what is expanded lies in memory once, and so do windows that overlap."""
    if tensor.layout is not torch.strided:
        return sum(map(_size, (tensor._indices(), tensor._values()))) if tensor.layout is torch.sparse_coo else 0
    distinct = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
    size = int(distinct) * tensor.element_size()
    return size if tensor.is_contiguous() else min(size, int(tensor.untyped_storage().nbytes()))


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
