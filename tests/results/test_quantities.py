"""The quantities that conditions may name, with intervals calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.results.comparison import Estimate, Interval
from autofuse.results.ladder import LEVELS
from autofuse.results.quantities import of_both, of_profile
from tests.display.samples import gpt

PROFILE = gpt()
TIMED = replace(PROFILE, timing=replace(PROFILE.timing, seconds=(2.0,), interval=Interval(1.0, 4.0), tokens=8))


def test_a_single_profile_has_levels_and_rates_but_no_ratios() -> None:
    known = of_profile(TIMED)
    assert known["time_ratio"].value is None and "--baseline" in known["time_ratio"].reason
    assert known["tokens_per_second"].value == 4.0
    assert known["tokens_per_second"].interval == Interval(2.0, 8.0)
    assert {kind.name for kind in LEVELS} <= set(known)


def test_the_interval_of_mfu_follows_from_the_time_of_the_step() -> None:
    mfu = of_profile(TIMED)["mfu"]
    value = PROFILE.level("mfu").value
    assert value is not None and mfu.interval is not None
    assert mfu.interval == pytest.approx((value / 2, value * 2))
    assert of_profile(TIMED)["busy"].interval is None


def test_times_are_after_over_before_so_a_gain_of_two_is_a_half() -> None:
    after = replace(TIMED, timing=replace(TIMED.timing, tokens=16))
    known = of_both(TIMED, after, Estimate(2.0, Interval(1.6, 2.5)))
    assert known["time_ratio"].value == 0.5
    assert known["time_ratio"].interval == pytest.approx((0.4, 0.625))
    assert known["tokens_per_second_ratio"].value == 4.0  # twice the tokens in half the time
    assert known["tokens_per_second_ratio"].interval == pytest.approx((3.2, 5.0))


def test_peak_memory_is_counted_and_exact() -> None:
    half = replace(TIMED, memory=replace(TIMED.memory, peak_bytes=50))
    whole = replace(TIMED, memory=replace(TIMED.memory, peak_bytes=100))
    found = of_both(whole, half, None)["peak_memory_ratio"]
    assert (found.value, found.interval) == (0.5, None)
