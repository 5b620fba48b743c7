"""How far a fused result may lie from the exact one, and how far it does.

The original rounds too, so its own error says what its dtype is good for. A fused kernel rounds at other places: where
the original happens to be exact, random rounding of every step (autofuse.verify.arithmetic) says what rounding may do.
Knows tensors of numbers; must not know how they were made.

Two comparisons are made of each tensor, of the root mean square and of the largest entry of the error:

    error(fused) <= C * max(error(original), spread) + (2 + sqrt(terms) if terms > 1) * unit * size(exact)

`unit` is the unit roundoff of the coarsest dtype at work, half its eps: writing a result down costs one, and a second
stands for the last operation before. A result that is a sum of many `terms`, as a parameter's gradient is of as many as
there are rows, may have been summed up in its own dtype: then the rounding of partial sums, which grow as the square
root of their number, adds up to sqrt(terms / 2) units; torch's layer norm does so in half precision on CPU.
`spread` is the largest error of DRAWS randomly rounded runs.
C = 4 * (1 + 4 / n) for n entries: two errors that differ only in where they were rounded have about the same size, and
the less is known of that size (few entries) the more room it needs. For a single normally distributed number, C = 20
times the largest of four others is exceeded with a chance of 3 * (2 / pi) ** 2 / 20 ** 4 = 8e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DRAWS = 4


@dataclass(frozen=True)
class Gap:
    """An error and its bound, both relative to the size of what was computed.

    That is the largest entry of the exact result, or of terms that cancelled in it, whose size their rounding shows:
    the gradient of a key's bias, say, is always 0.
    """

    error: float = 0.0
    bound: float = 0.0

    @property
    def within(self) -> bool:
        return self.error <= self.bound

    @property
    def ratio(self) -> float:
        """How much of the bound is used up: above 1 the error is too large."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.bound if self.bound else math.inf


class RoundingSpread(NamedTuple):
    """How far a randomly rounded result lies from the exact one: the two sizes of the difference."""

    root_mean_square: float
    largest: float


def spread_of(rounded: Tensor, original: Tensor, exact: Tensor) -> RoundingSpread:
    """What rounding at random does to a result, where the exact result and the original's are finite."""
    rounded, original, exact = (_flat(t) for t in (rounded, original, exact))
    off = (rounded - torch.where(exact.isnan(), original, exact)).nan_to_num(0.0, 0.0, 0.0)
    if not math.isfinite(original.sum().item() + exact.sum().item()):
        off = off[original.isfinite() & (exact.isfinite() | exact.isnan())]
    return RoundingSpread(_root_mean_square(off), _largest(off)) if off.numel() else RoundingSpread(0.0, 0.0)


def gap(
    fused: Tensor, original: Tensor, exact: Tensor, unit: float, rounded: Sequence[RoundingSpread] = (),
    *, share: float = 1.0, terms: int = 1,
) -> Gap:  # fmt: skip
    """The worse of the two comparisons. `rounded`: what randomly rounded runs are off by; all tensors have one shape.

    `share` of the original's error counts: its unit roundoff may be greater than `unit`.
    Where the original is NaN, anything goes; where it is finite, fused must be, and where it overflows, fused may do so
    too or be right.
    """
    fused, original, exact = (_flat(t) for t in (fused, original, exact))
    if not all(math.isfinite(t.sum().item()) for t in (fused, original, exact)):
        exact = torch.where(exact.isnan(), original, exact)
        if ((fused != original) & ~fused.isfinite() & ~original.isnan()).any():
            return Gap(math.inf)
        compared = ~original.isnan() & fused.isfinite() & exact.isfinite()
        fused, original, exact = (t[compared] for t in (fused, original, exact))
    if exact.numel() == 0:
        return Gap()
    own = share * (original - exact)
    if not math.isfinite(own.sum().item()):
        own = own.nan_to_num(0.0, 0.0, 0.0)  # an overflow says nothing of rounding
    error = fused - exact
    units = unit * (2.0 + math.sqrt(terms) if terms > 1 else 2.0)
    spreads = zip(*rounded, strict=True) if rounded else ((),) * len(SIZES)
    measured = (
        _measured(size, error, max(size(own), *spread, 0.0), exact, unit, units)
        for size, spread in zip(SIZES, spreads, strict=True)
    )
    return max(measured, key=lambda g: g.ratio)


def _measured(size: Size, error: Tensor, rounding: float, exact: Tensor, unit: float, floor: float) -> Gap:
    bound = 4.0 * (1.0 + 4.0 / exact.numel()) * rounding + floor * size(exact)
    scale = max(_largest(exact), rounding / unit) or 1.0
    return Gap(size(error) / scale, bound / scale)


def _flat(t: Tensor) -> Tensor:
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return t.detach().to(torch.float64).flatten()


def _root_mean_square(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) / math.sqrt(t.numel())


def _largest(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t, math.inf))


Size = Callable[[Tensor], float]
SIZES: tuple[Size, ...] = (_root_mean_square, _largest)  # as in RoundingSpread
