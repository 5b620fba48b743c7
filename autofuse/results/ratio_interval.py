"""How sure a share is: a ratio of two sums over steps, with an interval from the scatter of the steps. Numbers only.

A part's share is its time in all steps / the time of all steps, the ratio estimator. Its variance is the one that
W. Cochran, "Sampling Techniques" (3rd edition, 2.9 and 6.4), gives, and Student's t makes an interval of it: with three
steps it is as wide as three steps deserve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.results.comparison import Interval

# Student's t, two-sided 95 %, by degrees of freedom 1 to 10.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """The 95 % interval of sum(parts) / sum(wholes), each a part of the whole at its index, so it lies within 0 and 1.

    None for fewer than two steps, or where no time passes. Raises ValueError where the two are not of equal length.
    """
    pairs = list(zip(parts, wholes, strict=True))
    count, total = len(pairs), sum(wholes)
    if count < 2 or total <= 0:
        return None
    ratio = sum(parts) / total
    squares = sum((part - ratio * whole) ** 2 for part, whole in pairs)
    error = math.sqrt(squares / (count * (count - 1))) / (total / count)
    reach = student_t(count - 1) * error
    return Interval(max(0.0, ratio - reach), min(max(1.0, ratio), ratio + reach))


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t. From 11 degrees on by the first terms of its expansion in 1 / freedom
    (Abramowitz and Stegun, 26.7.5), which are right to three digits there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
