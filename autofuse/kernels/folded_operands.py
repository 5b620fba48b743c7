"""Tensors of any number of dimensions in the form that kernels need: few leading dimensions, in the order of memory.

Dimensions that are contiguous with each other in every operand become one. A dimension over which an operand is
broadcast has stride 0 for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MOST = 3  # leading dimensions of a fold; in models, dimensions that operands share and do not share alternate
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


@dataclass(frozen=True)
class FoldedShape:
    """The common leading dimensions of several operands.

    Attributes:
        sizes: the leading sizes, MOST of them.
        strides: for each operand, its strides in these dimensions.
        ordered: the leading sizes of the first operand, in the order of its memory.
        back: the permutation from that order to the first operand's own.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    ordered: tuple[int, ...]
    back: tuple[int, ...]

    def view(self, place: int, x: Tensor) -> Tensor:
        """Operand `place` with the leading dimensions of the fold, of size 1 where it is broadcast.

        Only for operands with a last dimension of their own.
        """
        strides = self.strides[place]
        sizes = [n if s else 1 for n, s in zip(self.sizes, strides, strict=True)]
        return x.as_strided((*sizes, x.shape[-1]), (*strides, x.stride(-1)))

    def result(self, output: Tensor) -> Tensor:
        """A kernel's result, contiguous and with the leading sizes of the fold, in the first operand's shape."""
        return output.contiguous().view(*self.ordered, output.shape[-1]).permute(*self.back, -1)

    def empty(self, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a result with the first operand's leading shape, in the order of its memory."""
        return torch.empty((*self.ordered, width), dtype=dtype, device=device).permute(*self.back, -1)


def fold(*operands: Tensor) -> FoldedShape | None:
    """The fold of operands whose leading dimensions broadcast to those of the first; None if too many are left."""
    return _fold(tuple((tuple(x.shape[:-1]), tuple(x.stride()[:-1])) for x in operands))


def fold_checked(*operands: Tensor) -> FoldedShape:
    """`fold` of operands that the provider's check has accepted.

    Raises:
        ValueError: if the operands do not fold.
    """
    result = fold(*operands)
    if result is None:
        raise ValueError(f"The operands have more than {MOST} runs of leading dimensions in memory.")
    return result


def with_contiguous_rows(x: Tensor) -> Tensor:
    """`x` with contiguous rows, which kernels need."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def without_broadcast(x: Tensor) -> Tensor:
    """`x` with contiguous rows and without broadcast dimensions."""
    strides = x.stride()
    repeated = 0 in strides and any(s == 0 and n > 1 for n, s in zip(x.shape, strides, strict=True))
    return x.contiguous() if repeated else with_contiguous_rows(x)


def without_repeats(x: Tensor) -> Tensor:
    """`x` without the repetitions of expanded dimensions: size 1 wherever the stride is 0."""
    strides = x.stride()
    if 0 not in strides:
        return x
    return x.as_strided([n if s else min(n, 1) for n, s in zip(x.shape, strides, strict=True)], strides)


def broadcasts_to(x: Tensor, to: Tensor) -> bool:
    """Whether the leading dimensions of `x` broadcast to those of `to` without enlarging them."""
    leading, target = x.shape[:-1], to.shape[:-1]
    if len(leading) > len(target):
        return False
    return all(n in (1, m) for n, m in zip(reversed(leading), reversed(target), strict=False))


def empty_in_memory_order(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Empty memory with the shape of `x`, with its leading dimensions in the same order in memory."""
    order = _order(x.stride()[:-1])
    result = torch.empty([x.shape[i] for i in (*order, -1)], dtype=dtype, device=x.device)
    return result.permute(*_inverse(order), -1)


def _order(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda i: -strides[i])  # stable: equal strides keep their order


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@lru_cache(maxsize=4096)
def _fold(layouts: tuple[Layout, ...]) -> FoldedShape | None:
    shape, strides = layouts[0]
    order = _order(strides)
    leading = [_broadcast(layout, shape) for layout in layouts]
    dimensions = [i for i in order if shape[i] != 1]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for i in dimensions:
        size, strides_of_operands = shape[i], tuple(s[i] for s in leading)
        if merged and merged[-1][1] == tuple(size * step for step in strides_of_operands):
            size *= merged.pop()[0]
        merged.append((size, strides_of_operands))
    if len(merged) > MOST:
        return None
    merged = [(1, (0,) * len(layouts))] * (MOST - len(merged)) + merged
    return FoldedShape(
        sizes=tuple(size for size, _ in merged),
        strides=tuple(tuple(strides_of_operands[k] for _, strides_of_operands in merged) for k in range(len(layouts))),
        ordered=tuple(shape[i] for i in order),
        back=tuple(_inverse(order)),
    )


def _broadcast(layout: Layout, to: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an operand that is expanded to the shape `to`."""
    shape, strides = layout
    missing = len(to) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
