"""Intervals of medians, compared with the binomial distribution."""

from __future__ import annotations

import random
from statistics import median

import pytest

from autofuse.results.medians import interval_at, median_interval, outer, percentile_interval


def test_the_ends_are_the_order_statistics_of_the_binomial_table() -> None:
    # n = 10: P(at most one below the median) = 11/1024 on either side, 2.1 % together; two more would be 10.9 %.
    assert median_interval([10, 1, 9, 2, 8, 3, 7, 4, 6, 5]) == (2, 9)
    assert median_interval(range(1, 21)) == (6, 15)
    assert median_interval([3.0]) == (3, 3)
    assert median_interval([2, 1, 3]) == (1, 3)


def test_the_interval_contains_the_median_of_a_skewed_distribution_with_its_level() -> None:
    draws = random.Random(0)
    true = median(draws.lognormvariate(0, 1) for _ in range(100_001))
    hits = sum(true in median_interval([draws.lognormvariate(0, 1) for _ in range(12)]) for _ in range(2000))
    assert hits >= 0.95 * 2000


def test_without_times_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one time"):
        median_interval([])


@pytest.mark.parametrize(
    "count, level, cut",
    [
        (5, 0.95, None),  # 2 x 1/32 = 0.0625 is more than 0.05
        (6, 0.95, 0),  # 2 x 1/64 = 0.031
        (8, 0.95, 0),  # 2 x (1 + 8)/256 = 0.070 would be too much
        (9, 0.95, 1),  # 2 x (1 + 9)/512 = 0.039
        (14, 0.9999, None),  # 2/16384 = 0.00012
        (15, 0.9999, 0),  # 2/32768 = 0.00006
        (0, 0.95, None),
        (6, 0.0, 2),  # two beyond either end leave two; three would leave none
        (7, 0.0, 2),  # 2 x (1 + 7 + 21)/128; the middle one is in every interval
        (2, 0.5, 0),  # 2 x 1/4 is just what is left out
        (3, 0.75, 0),  # 2 x 1/8 is just what is left out
    ],
)
def test_the_number_of_excluded_values_follows_the_binomial_distribution(
    count: int, level: float, cut: int | None
) -> None:
    assert outer(count, level) == cut


def test_too_few_numbers_have_no_interval_of_the_requested_level() -> None:
    assert interval_at([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0], 0.95) == (2.0, 8.0)
    assert interval_at([9.0, 1.0, 8.0, 2.0, 7.0], 0.95) is None


def test_a_percentile_interval_excludes_equally_many_resamples_at_both_ends() -> None:
    # 2.5 % of 200 are 5 below; 97.5 % are 195, of which the last is the end.
    assert percentile_interval(list(range(200, 0, -1))) == (6, 195)
    assert percentile_interval([3.0]) == (3, 3)
