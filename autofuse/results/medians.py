"""Confidence intervals of medians for any distribution, and percentile intervals of resampled values.

Each value is below the true median with probability 1/2. So the count of values below it is binomial, and order
statistics bound the median (W. Conover, "Practical Nonparametric Statistics", 3.2: the inverse of the sign test). For
differences within pairs of random order, this needs no assumption about the machine. If nothing differs, each sign is
random, however heavy the tails are and however the machine's speed changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.results.comparison import Interval

LEVEL = 0.95


def median_interval(numbers: Sequence[float]) -> Interval:
    """An interval that contains the true median with a probability of at least 95 %.

    Fewer than six numbers give their whole range, whose probability is lower.

    Raises:
        ValueError: There are no numbers.
    """
    if not numbers:
        raise ValueError("An interval needs at least one time, but there is none.")
    return interval_at(numbers, LEVEL) or Interval(min(numbers), max(numbers))


def interval_at(numbers: Sequence[float], level: float) -> Interval | None:
    """The narrowest interval that contains the true median with a probability of at least `level`.

    Its ends are two of the numbers, equally far from either end of the sorted list. None if there are too few numbers.
    """
    cut = outer(len(numbers), level)
    if cut is None:
        return None
    ordered = sorted(numbers)
    return Interval(ordered[cut], ordered[-1 - cut])


def percentile_interval(resampled: Sequence[float], level: float = LEVEL) -> Interval:
    """The percentile interval of the bootstrap, from one value for each resample. Raises IndexError if there are none.

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", 1979.
    """
    found, outside = sorted(resampled), (1 - level) / 2
    return Interval(found[math.floor(outside * len(found))], found[math.ceil((1 - outside) * len(found)) - 1])


def outer(count: int, level: float) -> int | None:
    """The number of `count` numbers that may be outside each end of such an interval; None if they are too few."""
    beyond, cut = 0, None
    for k in range(count // 2):
        beyond += math.comb(count, k)
        if 2 * beyond > (1 - level) * 2**count:
            break
        cut = k
    return cut
