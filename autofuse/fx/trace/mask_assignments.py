"""Treats `scores[mask] = number` as the equal scores.masked_fill_(mask, number).

A boolean index covers as many dimensions as it has, in order, from its position in the index. It has the sizes of these
dimensions. If they are the last ones, it is a mask for masked_fill_. This file knows indices and records nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.fx.trace.size_origins import Lookup
from autofuse.fx.trace.symbolic_sizes import Size


def mask_of(x: Tensor, index: Any, value: Any, sizes_of: Lookup) -> tuple[Tensor, list[str | None]] | None:
    """The mask of `x[index] = value`, and tests of its sizes.

    A test that is None means that the sizes match in the example, but no expression describes them.

    Args:
        x: the tensor that is written.
        index: the index.
        value: the value that is assigned.
        sizes_of: returns the expressions of a tensor's sizes.

    Returns:
        The mask and the tests; None if the statement does not assign a number by a mask.
    """
    *front, mask = index if isinstance(index, tuple) else (index,)
    if type(value) not in (int, float) or not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return None
    if not _selects_leading_dims(front, x.dim() - mask.dim()) or not mask.dim() or _overlaps(x):
        return None
    if x.shape[-mask.dim() :] != mask.shape:
        return None
    sizes = zip(sizes_of(x)[-mask.dim() :], sizes_of(mask), map(int, mask.shape), strict=True)
    return mask, [_test(own, other, n) for own, other, n in sizes if own is None or own != other]


def _test(own: Size, other: Size, n: int) -> str | None:
    """A test that the size `other` of the mask equals the size of the scores, and is not 1.

    Args:
        own: the expression for the size of the scores.
        other: the expression for the size of the mask.
        n: both sizes in the example.
    """
    # masked_fill_ would broadcast a size of 1, where the assignment raises IndexError.
    if own is not None and other is not None:
        return f"{own} == {other}"
    return f"{other} > 1" if other is not None and n > 1 else None


def _selects_leading_dims(front: list[Any], dims: int) -> bool:
    """Whether the index before the mask selects the first `dims` dimensions entirely."""
    if any(isinstance(i, Tensor) or i is not ... and i != slice(None) for i in front):
        return False
    return len(front) == 1 if ... in front else len(front) == dims


def _overlaps(x: Tensor) -> bool:
    """Whether several entries of `x` share memory. masked_fill_ refuses to write to such a tensor."""
    return any(step == 0 and n != 1 for step, n in zip(x.stride(), x.shape, strict=True))
