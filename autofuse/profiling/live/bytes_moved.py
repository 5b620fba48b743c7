"""Counts the bytes that one call of an operator reads and writes, and finds calls that move nothing.

It uses operators' schemas and tensors' memory layouts, not what is computed.
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
_READ_AS_MUCH_AS_WRITTEN = frozenset(  # they read no more of the first operand than they write
    "embedding index index_select gather take nll_loss_forward nll_loss2d_forward _unsafe_index multinomial".split()
)
_UNREAD = {  # positions of operands that only give a size, or that are overwritten
    **dict.fromkeys(
        "zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full fill_ zero_ copy_ bernoulli_ "
        "uniform_ normal_ exponential_ random_ log_normal_ geometric_ cauchy_ new_empty".split(),
        (0,),
    ),
    "nll_loss_backward": (1,),
    "nll_loss2d_backward": (1,),
}


def moves_nothing(function: Any, tensors: tuple[Tensor, ...], result: Any) -> bool:
    """Whether an operator computes and moves nothing: it allocates, queries, or returns another view."""
    if isinstance(function, HigherOrderOperator):
        return False
    if function._opname in _ALLOCATIONS:
        return True
    if _written_arguments(function):
        return False
    results = tuple(tensors_in(result))
    if not results:  # a number, as from item() or a size
        return True
    arguments = {_storage(t) for t in tensors}
    return all(_storage(t) in arguments for t in results)


@cache
def _written_arguments(function: Any) -> tuple[str, ...]:
    """Return the names of the arguments that an operator writes to."""
    return tuple(a.name for a in function._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def _argument_names(function: Any) -> tuple[str, ...]:
    return tuple(a.name for a in function._schema.arguments)


def bytes_moved(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the bytes that a call reads and writes, each operand once. In-place operands are read, too."""
    written = {id(t): t for t in tensors_in(result)}
    if isinstance(function, HigherOrderOperator):
        return sum(_size(t) for t in (*tensors_in((args, tuple(kwargs.values()))), *written.values()))
    arguments = {**dict(zip(_argument_names(function), args, strict=False)), **kwargs}
    for name in _written_arguments(function):
        written |= {id(t): t for t in tensors_in(arguments.get(name))}
    unread = _UNREAD.get(function._opname, ())
    read: dict[int, int] = {}
    for place, (name, value) in enumerate(arguments.items()):
        if place in unread or name == "out":
            continue
        for tensor in tensors_in(value):
            read[id(tensor)] = _size(tensor)
    if function._opname in _READ_AS_MUCH_AS_WRITTEN and args and id(args[0]) in read:
        read[id(args[0])] = min(read[id(args[0])], sum(map(_size, written.values())))
    return sum(read.values()) + sum(map(_size, written.values()))


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements: expanded and overlapping elements are in memory once."""
    if tensor.layout is not torch.strided:
        return sum(map(_size, (tensor._indices(), tensor._values()))) if tensor.layout is torch.sparse_coo else 0
    distinct = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
    size = int(distinct) * tensor.element_size()
    return size if tensor.is_contiguous() else min(size, int(tensor.untyped_storage().nbytes()))


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
