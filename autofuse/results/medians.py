"""What is sure about a median, whatever the numbers' distribution, and what resampling says. It knows numbers only.

Each number lies below the true median with probability 1/2, so how many do is binomial, and order statistics bound the
median (W. Conover, "Practical Nonparametric Statistics", 3.2: the sign test turned round). Of differences within pairs
whose order chance decided this needs no assumption about the machine at all: if nothing differs, heads or tails decide
each sign, however heavy the tails, however the machine's speed wanders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.results.comparison import Interval

LEVEL = 0.95


def median_interval(numbers: Sequence[float]) -> Interval:
    """An interval that holds the true median with a probability of at least 95 %.

    Fewer than six numbers give their whole range, which is less sure than that. Raises ValueError without any.
    """
    if not numbers:
        raise ValueError("An interval takes at least one time; there is none.")
    return interval_at(numbers, LEVEL) or Interval(min(numbers), max(numbers))


def interval_at(numbers: Sequence[float], level: float) -> Interval | None:
    """The narrowest interval between two of the numbers, as many from either end, that holds the true median with a
    probability of at least `level`. None where there are too few numbers for any to.
    """
    cut = outer(len(numbers), level)
    if cut is None:
        return None
    ordered = sorted(numbers)
    return Interval(ordered[cut], ordered[-1 - cut])


def percentile_interval(resampled: Sequence[float], level: float = LEVEL) -> Interval:
    """The percentile bootstrap's interval (B. Efron, "Bootstrap methods: another look at the jackknife", 1979) of what
    was computed from each resample. Raises IndexError without any.
    """
    found, outside = sorted(resampled), (1 - level) / 2
    return Interval(found[math.floor(outside * len(found))], found[math.ceil((1 - outside) * len(found)) - 1])


def outer(count: int, level: float) -> int | None:
    """How many of `count` numbers may lie beyond each end of such an interval; None where even all are too few."""
    beyond, cut = 0, None
    for k in range(count // 2):
        beyond += math.comb(count, k)
        if 2 * beyond > (1 - level) * 2**count:
            break
        cut = k
    return cut
