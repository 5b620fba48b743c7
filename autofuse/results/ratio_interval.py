"""Confidence intervals of shares: of the ratio of two sums over steps, from the scatter of the steps.

The share of a part is its time in all steps / the time of all steps (the ratio estimator). Its variance follows W.
Cochran, "Sampling Techniques" (3rd edition, 2.9 and 6.4), and Student's t gives the interval. With three steps it is
correspondingly wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.results.comparison import Interval

# Student's t, two-sided 95 %, by degrees of freedom 1 to 10.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """The 95 % interval of sum(parts) / sum(wholes), within 0 and 1.

    Each part belongs to the whole at the same index. None for fewer than two steps, or if the wholes are 0. Raises
    ValueError if the lengths differ.
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
    """The 97.5 % quantile of Student's t.

    From 11 degrees of freedom on, it uses the first terms of the expansion in 1 / freedom (Abramowitz and Stegun,
    26.7.5), which are accurate to three digits.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
