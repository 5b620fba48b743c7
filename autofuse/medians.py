"""How sure a median is. It knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.report.comparison import Interval

LEVEL = 0.95


def median_interval(seconds: Sequence[float]) -> Interval:
    """An interval that holds the true median with a probability of at least 95 %, whatever the times' distribution.

    Its ends are order statistics: each time lies below the median with probability 1/2, so how many do is binomial
    (W. Conover, "Practical Nonparametric Statistics", 3.2). Fewer than six times give their whole range, which is less
    sure than that. Raises ValueError without any.
    """
    if not seconds:
        raise ValueError("An interval takes at least one time; there is none.")
    ordered, n = sorted(seconds), len(seconds)
    below = 0.0
    cut = 0
    for k in range(n // 2):
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - LEVEL:
            break
        cut = k
    return Interval(ordered[cut], ordered[n - 1 - cut])
