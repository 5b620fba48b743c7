"""Computes how much a fused result may differ from the exact one, and how much it does.

The original rounds too, so its own error shows how exact its dtype is. A fused kernel rounds in other places. The
original may happen to be exact where the kernel rounds; then random rounding of every step (autofuse.verify.arithmetic)
shows the possible effect of rounding. This file handles tensors of numbers and does not know how they were computed.

Each tensor is compared twice, by the root mean square and by the largest entry of the error:

    error(fused) <= C * max(error(original), spread) + (2 + sqrt(terms) if terms > 1) * unit * size(exact)

- `unit` is the unit roundoff of the coarsest dtype in use, half its eps. Two units are always allowed: one for writing
  the result, one for the last operation before that.
- `terms` counts the terms of a sum: the gradient of a parameter has one for each row. A kernel may compute such a sum
  in its own dtype. Then the rounding of the partial sums, which grow with the square root of their number, adds up to
  sqrt(terms / 2) units. torch's layer norm does so in half precision on CPU.
- `spread` is the largest error of DRAWS randomly rounded runs.
- C = 4 * (1 + 4 / n) for n entries. Two errors with rounding in different places have about the same size. With few
  entries that size is uncertain, so the bound is wider. For a single normally distributed number, C = 20 times the
  largest of four others is exceeded with a probability of 3 * (2 / pi) ** 2 / 20 ** 4 = 8e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DRAWS = 4
_LONG_ROW = 16  # the row length from which an average is meaningful


@dataclass(frozen=True)
class Gap:
    """An error and its bound, both relative to the size of the computed tensor.

    The size is the largest entry of the exact result. It may be larger, if terms cancel in the result; then rounding
    shows the size of the terms. For instance, the gradient of a key's bias is always 0.
    """

    error: float = 0.0
    bound: float = 0.0

    @property
    def within(self) -> bool:
        """Whether the error is at most the bound."""
        return self.error <= self.bound

    @property
    def ratio(self) -> float:
        """The error divided by its bound; above 1 the error is too large."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.bound if self.bound else math.inf


class RoundingSpread(NamedTuple):
    """Two sizes of the difference between a randomly rounded result and the exact one."""

    root_mean_square: float
    largest: float


def rounding_spread(rounded: Tensor, original: Tensor, exact: Tensor) -> RoundingSpread:
    """Return the effect of random rounding on a result.

    Only entries with a finite exact and a finite original result count.
    """
    rounded, original, exact = (_flatten(t) for t in (rounded, original, exact))
    error = (rounded - torch.where(exact.isnan(), original, exact)).nan_to_num(0.0, 0.0, 0.0)
    if not math.isfinite(original.sum().item() + exact.sum().item()):
        error = error[original.isfinite() & (exact.isfinite() | exact.isnan())]
    return RoundingSpread(_root_mean_square(error), _largest(error)) if error.numel() else RoundingSpread(0.0, 0.0)


def measure_gap(
    fused: Tensor, original: Tensor, exact: Tensor, unit: float, rounded: Sequence[RoundingSpread] = (),
    *, share: float = 1.0, terms: int = 1,
) -> Gap:  # fmt: skip
    """Return the worse of the two comparisons. All tensors have one shape.

    The original decides which entries are compared:

    - NaN in the original: every value is accepted.
    - finite in the original: the fused value must be finite.
    - overflow in the original: the fused value may overflow too, or be finite and correct.

    Args:
        fused: the result of the rewritten code.
        original: the result of the original code.
        exact: the exact result.
        unit: the unit roundoff.
        rounded: the spreads of randomly rounded runs.
        share: the share of the original's error that counts, since its unit roundoff may be greater than `unit`.
        terms: how many terms each entry is the sum of.
    """
    fused, original, exact = (_flatten(t) for t in (fused, original, exact))
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
        own = own.nan_to_num(0.0, 0.0, 0.0)  # an overflow is no rounding error
    error = fused - exact
    units = unit * (2.0 + math.sqrt(terms) if terms > 1 else 2.0)
    spreads = zip(*rounded, strict=True) if rounded else ((),) * len(SIZES)
    measured = (
        _measure(size, error, max(size(own), *spread, 0.0), exact, unit, units)
        for size, spread in zip(SIZES, spreads, strict=True)
    )
    return max(measured, key=lambda g: g.ratio)


def _measure(size: Size, error: Tensor, rounding: float, exact: Tensor, unit: float, floor: float) -> Gap:
    bound = 4.0 * (1.0 + 4.0 / exact.numel()) * rounding + floor * size(exact)
    scale = max(_largest(exact), rounding / unit) or 1.0
    return Gap(size(error) / scale, bound / scale)


def row_averages(x: Tensor) -> Tensor | None:
    """Return the root mean square of each row; None if rows are missing, or too short for an average to mean much."""
    x = torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x
    if x.ndim < 2 or x.shape[-1] < _LONG_ROW or not x.numel():
        return None
    wide = torch.promote_types(x.dtype, torch.float32)
    sizes: Tensor = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=wide)
    return sizes.flatten() / math.sqrt(x.shape[-1])


def _flatten(t: Tensor) -> Tensor:
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return t.detach().to(torch.float64).flatten()


def _root_mean_square(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) / math.sqrt(t.numel())


def _largest(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t, math.inf))


Size = Callable[[Tensor], float]
SIZES: tuple[Size, ...] = (_root_mean_square, _largest)  # as in RoundingSpread
