"""`scores[mask] = number` as what it does: scores.masked_fill_(mask, number).

A boolean index takes the dimensions of what it indexes in order, from the place where it stands, and has their sizes.
Where those are the last ones, it is a mask as masked_fill_ takes it. Knows indices; writes nothing down.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.fx.trace.size_sources import Lookup
from autofuse.fx.trace.symbolic_sizes import Size


def mask_of(x: Tensor, index: Any, value: Any, sizes_of: Lookup) -> tuple[Tensor, list[str | None]] | None:
    """The mask of `x[index] = value`, and tests of its sizes; None where it is no assignment by a mask of a number.

    A test that is None says that the sizes are right in the example, and that no text tells of others.
    """
    *front, mask = index if isinstance(index, tuple) else (index,)
    if type(value) not in (int, float) or not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return None
    if not _leaves_front(front, x.dim() - mask.dim()) or not mask.dim() or _overlaps(x):
        return None
    if x.shape[-mask.dim() :] != mask.shape:
        return None
    sizes = zip(sizes_of(x)[-mask.dim() :], sizes_of(mask), map(int, mask.shape), strict=True)
    return mask, [_test(own, other, n) for own, other, n in sizes if own is None or own != other]


def _test(own: Size, other: Size, n: int) -> str | None:
    """What says that the size of the mask, `other`, is that of the scores, and not 1: both are `n` in the example."""
    if own is not None and other is not None:
        return f"{own} == {other}"
    return f"{other} > 1" if other is not None and n > 1 else None


def _leaves_front(front: list[Any], dims: int) -> bool:
    """Whether an index before the mask takes the first `dims` dimensions, and takes them whole."""
    if any(isinstance(i, Tensor) or i is not ... and i != slice(None) for i in front):
        return False
    return len(front) == 1 if ... in front else len(front) == dims


def _overlaps(x: Tensor) -> bool:
    """Whether several entries of `x` are one in memory, which masked_fill_ refuses to write."""
    return any(step == 0 and n != 1 for step, n in zip(x.stride(), x.shape, strict=True))
