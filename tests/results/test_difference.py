"""Verdicts on runs that were measured separately, on simulated machines."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autofuse.results.comparison import Comparison, Estimate, Interval
from autofuse.results.difference import MeasuredSide, judge_sides, of_comparison, of_comparisons, of_profiles
from tests.display.samples import gpt


def run(draws: random.Random, step: float, *, load: float, speed: float = 1.0, steps: int = 20) -> MeasuredSide:
    """A run on a machine of some speed. Other programs hold the core for `load` of the time, in slices of 4 ms."""

    def takes(work: float) -> float:
        left, passed = work * speed * draws.lognormvariate(0, 0.02), 0.0
        while left > 0:
            ran = min(left, draws.uniform(0, 0.008) if load else left)
            left -= ran
            passed += ran
            if left > 0 or (load and draws.random() < ran / 0.008):
                passed += 0.004 * draws.choice((1, 2)) * 2 * load
        return passed

    pairs = [(takes(step), takes(0.001)) for _ in range(steps)]
    return MeasuredSide(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


@pytest.mark.parametrize("step", [0.003, 0.012, 0.25])
@pytest.mark.parametrize("loads", [(0.0, 0.0), (0.5, 0.5), (0.5, 0.0), (0.0, 0.5), (0.7, 0.3)])
def test_one_program_measured_twice_is_never_called_faster(step: float, loads: tuple[float, float]) -> None:
    for seed in range(3):
        draws = random.Random(seed)
        before, after = (run(draws, step, load=load) for load in loads)
        assert judge_sides(before, after).verdict != "confirmed", seed


@pytest.mark.parametrize("speeds", [(1.3, 1.0), (1.0, 1.3), (2.0, 1.0)])
def test_one_program_on_a_machine_that_was_slower_is_never_called_faster(speeds: tuple[float, float]) -> None:
    for seed in range(3):
        draws = random.Random(seed)
        before, after = (run(draws, 0.02, load=0.0, speed=speed) for speed in speeds)
        assert judge_sides(before, after).verdict in ("inconclusive", "no-change")


@pytest.mark.parametrize("load", [0.0, 0.3])
def test_a_large_difference_is_found(load: float) -> None:
    for seed in range(3):
        draws = random.Random(seed)
        slow, fast = (run(draws, step, load=load) for step in (0.2, 0.05))
        assert judge_sides(slow, fast).verdict == "confirmed"
        assert judge_sides(fast, slow).verdict == "regressed"


def test_equal_runs_on_a_quiet_machine_are_no_change_and_a_twentieth_too() -> None:
    draws = random.Random(0)
    assert judge_sides(run(draws, 0.02, load=0), run(draws, 0.02, load=0)).verdict == "no-change"
    assert judge_sides(run(draws, 0.021, load=0), run(draws, 0.02, load=0)).verdict == "no-change"


STEADY = MeasuredSide((1.0,) * 10, (0.1,) * 10)
TWICE = MeasuredSide((2.0,) * 10, (0.1,) * 10)


def test_the_ratio_is_that_of_the_medians_and_the_interval_covers_every_comparison() -> None:
    found = judge_sides(TWICE, MeasuredSide((1.0,) * 10, (0.2,) * 10))
    assert found.ratio == Estimate(2.0, Interval(2.0, 4.0))  # by the yardstick 20 / 5 = 4


def test_steps_without_reference_times_are_judged_only_on_request() -> None:
    bare = replace(TWICE, yardstick=())
    assert judge_sides(bare, STEADY).verdict == "inconclusive"
    assert "--anyway" in judge_sides(bare, STEADY).reason
    assert judge_sides(bare, STEADY, anyway=True).verdict == "confirmed"


def test_different_conditions_are_named_and_judged_only_on_request() -> None:
    found = judge_sides(TWICE, STEADY, ["torch: 2.6 before, 2.13 after."])
    assert found.verdict == "inconclusive"
    assert "torch: 2.6 before, 2.13 after." in found.reason
    again = judge_sides(TWICE, STEADY, ["torch: 2.6 before, 2.13 after."], anyway=True)
    assert (again.verdict, again.caveats) == ("confirmed", ("torch: 2.6 before, 2.13 after.",))


def test_a_few_steps_have_no_verdict_even_on_request() -> None:
    few = MeasuredSide((2.0,) * 7, (0.1,) * 7)
    assert judge_sides(few, STEADY, anyway=True).verdict == "inconclusive"
    nothing = judge_sides(MeasuredSide(()), STEADY)
    assert (nothing.verdict, nothing.ratio) == ("inconclusive", None)
    assert nothing.summary == "inconclusive (measured apart)"


def test_profiles_name_differences_of_environment_and_work() -> None:
    before = gpt()
    after = replace(
        before,
        environment={**before.environment, "torch": "9.9", "python": "3.99"},
        timing=replace(before.timing, tokens=7),
    )
    caveats = " ".join(of_profiles(before, after).caveats)
    assert "9.9 after" in caveats and "tokens in a step" in caveats
    assert "3.99" not in caveats


COMPARISON = Comparison(
    2.0, Interval(1.9, 2.1), Estimate(1.0, Interval(0.99, 1.01)), "confirmed", "Because.", (2.0,) * 10, (1.0,) * 10
)


def test_interleaved_pairs_keep_their_verdict() -> None:
    found = of_comparison(COMPARISON)
    assert (found.verdict, found.reason, found.interleaved) == ("confirmed", "Because.", True)
    assert found.summary == "confirmed: 2.00x (1.90 to 2.10) (interleaved)"


def test_the_controls_of_two_comparisons_are_the_reference_times() -> None:
    slower_machine = replace(COMPARISON, before_seconds=(4.0,) * 10, after_seconds=(2.0,) * 10)
    assert of_comparisons(slower_machine, COMPARISON).verdict == "inconclusive"
    worse = replace(COMPARISON, after_seconds=(1.6,) * 10)
    assert of_comparisons(worse, COMPARISON).verdict == "confirmed"


def test_one_side_without_reference_times_counts_as_none() -> None:
    bare, nothing = replace(STEADY, yardstick=()), replace(STEADY, yardstick=(0.1,) * 9 + (0.0,))
    for side in (bare, nothing, replace(STEADY, yardstick=(0.1,) * 9)):
        assert judge_sides(TWICE, side).verdict == judge_sides(side, TWICE).verdict == "inconclusive"
        assert judge_sides(TWICE, side, anyway=True).ratio == Estimate(2.0, Interval(2.0, 2.0))


@pytest.mark.parametrize(
    ("seconds", "sticks", "verdict"),
    [
        (1.101, 0.1, "confirmed"),
        (1.099, 0.1, "no-change"),
        (0.911, 0.1, "no-change"),
        (0.908, 0.1, "regressed"),
        (1.05, 0.2, "inconclusive"),  # by the yardstick half: from 0.525 to 1.05
        (1.05, 0.05, "inconclusive"),  # by the yardstick twice: from 1.05 to 2.1
    ],
)
def test_a_verdict_requires_ten_percent_in_every_comparison(seconds: float, sticks: float, verdict: str) -> None:
    assert judge_sides(MeasuredSide((seconds,) * 10, (sticks,) * 10), STEADY).verdict == verdict


def test_the_first_quartile_is_compared_as_well_as_the_median() -> None:
    """Of 13 steps 6 took one second and 7 took two: the fourth shortest is 1, the median 2."""
    disturbed = MeasuredSide((1.0,) * 6 + (2.0,) * 7)
    found = judge_sides(disturbed, MeasuredSide((1.0,) * 13), anyway=True)
    assert found.ratio is not None and found.ratio.ratio == 2.0
    assert found.ratio.interval == Interval(1.0, 2.0)


def test_zero_times_are_not_steps() -> None:
    assert judge_sides(MeasuredSide((0.0,) * 10), STEADY, anyway=True).ratio is None


def test_unknown_or_equal_work_is_not_a_caveat() -> None:
    before = gpt()
    assert of_profiles(before, before).caveats == ()
    untold = replace(before, timing=replace(before.timing, tokens=None))
    assert of_profiles(before, untold).caveats == of_profiles(untold, before).caveats == ()
    assert of_profiles(before, replace(before, ranks=before.ranks[:1] or ())).caveats == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (1.0,) * 10), ((1.0,) * 10, ()), ((0.0,) + (1.0,) * 9, (1.0,) * 10), ((1.0,) * 10, (1.0,) * 9 + (-1.0,))],
)
def test_without_a_time_on_each_side_there_is_no_ratio(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    found = judge_sides(MeasuredSide(before), MeasuredSide(after), anyway=True)
    assert (found.verdict, found.ratio) == ("inconclusive", None) and "No step of one" in found.reason


def test_several_processes_differ_from_one_and_an_unknown_number_counts_as_one() -> None:
    one = gpt()
    two = replace(one, ranks=(one.ranks or (None,))[:1] * 2)  # type: ignore[arg-type]
    assert of_profiles(replace(one, ranks=()), two).caveats == ("processes: 1 before, 2 after.",)
    assert of_profiles(two, replace(one, ranks=two.ranks[:1])).caveats == ("processes: 2 before, 1 after.",)
    assert of_profiles(replace(one, ranks=()), replace(one, ranks=two.ranks[:1])).caveats == ()
