"""Tensors of any number of dimensions as kernels take them: few leading dimensions, in the order of memory.

Knows shapes and strides; must not know what is computed. Dimensions that lie behind each other in every operand become
one, those over which an operand is broadcast have the stride 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MOST = 3  # leading dimensions of a fold: shared between operands or not, in turn, is what models have
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


@dataclass(frozen=True)
class FoldedShape:
    """Leading sizes, the strides of each operand there, and how a result in the order of memory gets its own order."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    ordered: tuple[int, ...]
    back: tuple[int, ...]

    def view(self, place: int, x: Tensor) -> Tensor:
        """Operand `place` with the leading dimensions of the fold, of size 1 where it is broadcast; its last as it is.

        Only for operands that have a last dimension of their own.
        """
        strides = self.strides[place]
        sizes = [n if s else 1 for n, s in zip(self.sizes, strides, strict=True)]
        return x.as_strided((*sizes, x.shape[-1]), (*strides, x.stride(-1)))

    def result(self, made: Tensor) -> Tensor:
        """What a kernel made, contiguous and of the fold's leading sizes, in the first operand's shape."""
        return made.contiguous().view(*self.ordered, made.shape[-1]).permute(*self.back, -1)

    def empty(self, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a result: of the first operand's leading shape, in the order of its memory."""
        return torch.empty((*self.ordered, width), dtype=dtype, device=device).permute(*self.back, -1)


def fold(*operands: Tensor) -> FoldedShape | None:
    """How operands fold whose leading dimensions broadcast to those of the first; None where too many are left."""
    return _fold(tuple((tuple(x.shape[:-1]), tuple(x.stride()[:-1])) for x in operands))


def folded(*operands: Tensor) -> FoldedShape:
    """`fold` of operands that were found to fold."""
    made = fold(*operands)
    if made is None:
        raise ValueError(f"The operands have more than {MOST} runs of leading dimensions in memory.")
    return made


def dense(x: Tensor) -> Tensor:
    """`x` with the entries of a row side by side, as kernels read them."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def whole(x: Tensor) -> Tensor:
    """`dense(x)` that is no broadcast view of less memory."""
    strides = x.stride()
    repeated = 0 in strides and any(s == 0 and n > 1 for n, s in zip(x.shape, strides, strict=True))
    return x.contiguous() if repeated else dense(x)


def unexpanded(x: Tensor) -> Tensor:
    """`x` without the repetitions that it has in no memory: of size 1 in each dimension of stride 0."""
    strides = x.stride()
    if 0 not in strides:
        return x
    return x.as_strided([n if s else min(n, 1) for n, s in zip(x.shape, strides, strict=True)], strides)


def broadcasts_to(x: Tensor, to: Tensor) -> bool:
    """Whether the leading dimensions of `x` broadcast to those of `to` without making them larger."""
    own, wanted = x.shape[:-1], to.shape[:-1]
    if len(own) > len(wanted):
        return False
    return all(n in (1, m) for n, m in zip(reversed(own), reversed(wanted), strict=False))


def in_order_of_memory(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of the shape of `x`, its leading dimensions in the order in which those of `x` lie there."""
    order = _order(x.stride()[:-1])
    made = torch.empty([x.shape[i] for i in (*order, -1)], dtype=dtype, device=x.device)
    return made.permute(*_inverse(order), -1)


def _order(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda i: -strides[i])  # stable: equal strides keep their order


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@lru_cache(maxsize=4096)
def _fold(layouts: tuple[Layout, ...]) -> FoldedShape | None:
    shape, strides = layouts[0]
    order = _order(strides)
    own = [_broadcast(layout, shape) for layout in layouts]
    kept = [i for i in order if shape[i] != 1]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for i in kept:
        size, steps = shape[i], tuple(s[i] for s in own)
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            size *= merged.pop()[0]
        merged.append((size, steps))
    if len(merged) > MOST:
        return None
    merged = [(1, (0,) * len(layouts))] * (MOST - len(merged)) + merged
    return FoldedShape(
        sizes=tuple(size for size, _ in merged),
        strides=tuple(tuple(steps[k] for _, steps in merged) for k in range(len(layouts))),
        ordered=tuple(shape[i] for i in order),
        back=tuple(_inverse(order)),
    )


def _broadcast(layout: Layout, to: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an operand where it is as large as `to`."""
    shape, strides = layout
    missing = len(to) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
