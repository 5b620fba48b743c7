"""Intervals of shares: calculations by hand, and how often the interval contains the true share."""

from __future__ import annotations

import random

import pytest

from autofuse.results.ratio_interval import ratio_interval, student_t


def test_equal_steps_have_an_interval_of_width_zero() -> None:
    interval = ratio_interval([0.3, 0.6, 0.9], [1.0, 2.0, 3.0])
    assert interval == pytest.approx((0.3, 0.3))


def test_the_interval_of_two_steps_uses_t_with_one_degree_of_freedom() -> None:
    # Residuals are -0.1 and 0.1, so the standard error is sqrt(0.02 / 2) = 0.1, and t with one degree is 12.7.
    assert ratio_interval([0.4, 0.6], [1.0, 1.0]) == pytest.approx((0.0, 1.0))
    low, high = ratio_interval([0.499, 0.501], [1.0, 1.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.5 - 0.012706, 0.5 + 0.012706))


@pytest.mark.parametrize(("parts", "wholes"), [([0.5], [1.0]), ([], []), ([0.0, 0.0], [0.0, 0.0])])
def test_one_step_and_steps_without_time_have_no_interval(parts: list[float], wholes: list[float]) -> None:
    assert ratio_interval(parts, wholes) is None


def test_the_interval_contains_the_true_share_with_its_level() -> None:
    """Of 400 profiles of 12 noisy steps 95 % contain it; fewer than 90 % have a probability of under 1e-4."""
    chance, held = random.Random(7), 0
    for _ in range(400):
        parts, wholes = [], []
        for _ in range(12):
            part, other = chance.gauss(3.0, 0.5), chance.gauss(7.0, 0.5)
            parts.append(part)
            wholes.append(part + other)
        held += _within(0.3, parts, wholes)
    assert held > 360


def _within(share: float, parts: list[float], wholes: list[float]) -> bool:
    interval = ratio_interval(parts, wholes)
    return interval is not None and interval.low <= share <= interval.high


@pytest.mark.parametrize(("freedom", "table"), [(11, 2.201), (15, 2.131), (20, 2.086), (30, 2.042), (120, 1.980)])
def test_student_t_is_that_of_the_tables(freedom: int, table: float) -> None:
    assert student_t(freedom) == pytest.approx(table, abs=0.001)
