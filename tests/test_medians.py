from __future__ import annotations

import random
from statistics import median

import pytest

from autofuse.medians import median_interval


def test_the_ends_are_the_order_statistics_of_the_binomial_table() -> None:
    # n = 10: P(at most one below the median) = 11/1024 on either side, 2.1 % together; two more would be 10.9 %.
    assert median_interval([10, 1, 9, 2, 8, 3, 7, 4, 6, 5]) == (2, 9)
    assert median_interval(range(1, 21)) == (6, 15)
    assert median_interval([3.0]) == (3, 3)
    assert median_interval([2, 1, 3]) == (1, 3)


def test_it_holds_the_median_of_a_lopsided_distribution_as_often_as_it_says() -> None:
    draws = random.Random(0)
    true = median(draws.lognormvariate(0, 1) for _ in range(100_001))
    hits = sum(true in median_interval([draws.lognormvariate(0, 1) for _ in range(12)]) for _ in range(2000))
    assert hits >= 0.95 * 2000


def test_without_times_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one time"):
        median_interval([])
