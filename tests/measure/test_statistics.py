"""Tests of the statistics on synthetic samples with a known ratio. Every random generator has a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.measure.statistics import (
    EARLY_PAIRS,
    FEWEST_PAIRS,
    RESOLUTION,
    control,
    estimate,
    identical_runs_ratio,
    judge,
    judge_far_apart,
    paired_ratio,
)
from autofuse.results.comparison import Estimate, Interval, Verdict

EXPERIMENTS, RESAMPLES, PAIRS = 200, 300, 30
Times = list[float]


def machine(draws: random.Random) -> Callable[[float], float]:
    """Simulates a shared machine: its speed drifts, every run has 3 % of noise, and one run in ten is disturbed."""
    speed = 0.0

    def run(seconds: float) -> float:
        nonlocal speed
        speed += draws.gauss(0, 0.01)
        disturbed = 1 + draws.random() if draws.random() < 0.1 else 1
        return seconds * math.exp(speed + draws.gauss(0, 0.03)) * disturbed

    return run


def interleaved_times(draws: random.Random, true_ratio: float) -> tuple[Times, Times]:
    run, before, after = machine(draws), [], []
    for _ in range(PAIRS):
        if draws.random() < 0.5:
            before.append(run(true_ratio))
            after.append(run(1.0))
        else:
            after.append(run(1.0))
            before.append(run(true_ratio))
    return before, after


def judge_experiments(true_ratio: float, experiments: int = EXPERIMENTS) -> list[Verdict]:
    measured: list[Verdict] = []
    for seed in range(experiments):
        before, after = interleaved_times(random.Random(seed), true_ratio)
        effect = paired_ratio(before, after)
        identical = identical_runs_ratio(before, seed=seed)
        measured.append(judge(effect.estimate, identical, PAIRS, effect.strict_interval).verdict)
    return measured


def test_identical_variants_are_never_called_different_in_2000_experiments() -> None:
    measured = judge_experiments(true_ratio=1.0, experiments=2000)
    assert measured.count("confirmed") + measured.count("regressed") == 0


def test_a_machine_with_two_speeds_shows_no_false_difference() -> None:
    """The medians of the lists jump with the machine. A disturbance that a pair shares must cancel within the pair."""
    draws = random.Random(1)
    speeds = [draws.choice((1.0, 1.6)) for _ in range(PAIRS)]
    before, after = ([speed * draws.lognormvariate(0, 0.01) for speed in speeds] for _ in range(2))
    assert paired_ratio([1.1 * b for b in before], after).estimate.ratio == pytest.approx(1.1, rel=0.01)


def test_the_same_machine_shows_false_differences_without_interleaving() -> None:
    """Shows that the simulated machine is noisy enough for the test above."""
    false_positives = 0
    for seed in range(EXPERIMENTS):
        run = machine(random.Random(seed))
        before, after = [run(1.0) for _ in range(PAIRS)], [run(1.0) for _ in range(PAIRS)]
        false_positives += 1 not in estimate(before, after, seed=seed, resamples=RESAMPLES).interval
    assert false_positives > 0.4 * EXPERIMENTS


def test_a_large_gain_is_confirmed_and_never_called_a_loss() -> None:
    measured = judge_experiments(true_ratio=1.5)
    assert measured.count("confirmed") > 0.95 * EXPERIMENTS
    assert "regressed" not in measured


def test_a_large_loss_is_a_regression_and_never_called_a_gain() -> None:
    measured = judge_experiments(true_ratio=1 / 1.5)
    assert measured.count("regressed") > 0.95 * EXPERIMENTS
    assert "confirmed" not in measured


def test_the_interval_contains_the_true_ratio_as_often_as_its_level() -> None:
    covered = 0
    for seed in range(EXPERIMENTS):
        draws = random.Random(seed)
        before = [1.3 * draws.lognormvariate(0, 0.05) for _ in range(PAIRS)]
        after = [draws.lognormvariate(0, 0.05) for _ in range(PAIRS)]
        covered += 1.3 in estimate(before, after, seed=seed, resamples=RESAMPLES).interval
    # 95 % minus three standard deviations of a binomial distribution with 200 trials (1.5 % each).
    assert covered >= (0.95 - 3 * 0.0154) * EXPERIMENTS


def test_the_ratio_of_medians_ignores_one_outlier() -> None:
    assert estimate([2.0, 2.0, 2.0, 2.0, 900.0], [1.0] * 5).ratio == 2.0


def test_equal_times_have_the_ratio_one_and_an_interval_of_width_zero() -> None:
    assert estimate([0.5] * 9, [0.5] * 9) == Estimate(1.0, Interval(1.0, 1.0))


def test_the_same_seed_gives_the_same_interval() -> None:
    before, after = interleaved_times(random.Random(7), 1.1)
    assert estimate(before, after, seed=3) == estimate(before, after, seed=3)
    assert control(before, seed=3) == control(before, seed=3)


def test_a_disturbance_of_both_runs_of_a_pair_leaves_the_interval_narrow() -> None:
    """The bootstrap draws pairs, so a machine that is twice as slow in every other pair does not widen the interval."""
    slow = [1.0, 2.0] * 20
    paired_ratio = estimate([1.2 * s for s in slow], slow)
    assert paired_ratio.interval.high - paired_ratio.interval.low < 1e-9


seconds = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=20)


@given(seconds, st.randoms(use_true_random=False))
def test_swapping_the_sides_inverts_the_ratio(before: Times, draws: random.Random) -> None:
    after = [draws.uniform(1e-6, 1e3) for _ in before]
    there, back = estimate(before, after, resamples=20), estimate(after, before, resamples=20)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.interval.low <= there.interval.high


@given(seconds)
def test_the_control_uses_every_run_once(before: Times) -> None:
    """The same factor for all runs does not change the ratio. An odd last run is left out."""
    scaled = [2 * time for time in before]
    assert control(before, resamples=20).ratio == pytest.approx(control(scaled, resamples=20).ratio)
    assert control([*before, 1.0][: len(before) // 2 * 2], resamples=20) == control(before, resamples=20)


def test_a_control_of_one_run_raises_an_error() -> None:
    with pytest.raises(ValueError, match="at least two runs"):
        control([1.0])


@pytest.mark.parametrize("before, after", [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_times_raise_an_error(before: Times, after: Times) -> None:
    with pytest.raises(ValueError, match="one or more pairs"):
        estimate(before, after)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_invalid_times_raise_an_error(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        estimate([1.0, wrong], [1.0, 1.0])


def test_the_paired_ratio_is_the_median_of_the_pairs_ratios() -> None:
    measured = paired_ratio([2.0, 3.0, 4.0, 10.0, 6.0], [1.0, 2.0, 3.0, 4.0, 4.0])
    assert measured.estimate.ratio == pytest.approx(1.5)
    assert measured.estimate.interval == Interval(4 / 3, 2.5)  # of five pairs, the whole range


def test_few_pairs_have_a_strict_interval_only_if_the_sides_do_not_overlap() -> None:
    overlapping = paired_ratio([1.2] * 7 + [1.0], [1.0] * 7 + [1.1])
    assert overlapping.strict_interval == Interval(0.0, math.inf)
    assert paired_ratio([2.0] * 8, [1.0] * 8).strict_interval == Interval(2.0, 2.0)
    assert paired_ratio([2.0] * 7, [1.0] * 7).strict_interval == Interval(0.0, math.inf)


def test_a_change_also_needs_the_strict_interval() -> None:
    measured = effect(1.04, 1.05, 1.06)
    assert judge(measured, STEADY, PAIRS, Interval(1.01, 1.08)).verdict == "confirmed"
    assert judge(measured, STEADY, PAIRS, Interval(0.99, 1.09)).verdict == "inconclusive"


def effect(low: float, ratio: float, high: float) -> Estimate:
    return Estimate(ratio, Interval(low, high))


STEADY = effect(0.98, 1.0, 1.02)
MOVED = effect(1.03, 1.05, 1.07)
SILENT = effect(0.999, 1.0, 1.001)


@pytest.mark.parametrize(
    "measured, control, verdict",
    [
        pytest.param(effect(1.04, 1.05, 1.06), STEADY, "confirmed", id="above 1 and above the noise"),
        pytest.param(
            effect(1.03, 1.05, 1.09), effect(0.96, 1.0, 1.04), "confirmed", id="the ratio beyond the noise is enough"
        ),
        pytest.param(effect(0.94, 0.95, 0.96), STEADY, "regressed", id="below 1 and beyond the noise"),
        pytest.param(
            effect(1.01, 1.04, 1.06), STEADY, "inconclusive", id="perhaps within the difference of two copies"
        ),
        pytest.param(effect(1.01, 1.012, 1.015), SILENT, "no-change", id="within the difference of two copies"),
        pytest.param(effect(0.98, 1.00, 1.02), STEADY, "no-change", id="contains 1, narrow"),
        pytest.param(effect(1.005, 1.01, 1.015), STEADY, "no-change", id="excludes 1, within the noise"),
        pytest.param(effect(1.005, 1.015, 1.05), STEADY, "inconclusive", id="excludes 1, the ratio within the noise"),
        pytest.param(effect(0.80, 1.00, 1.20), STEADY, "inconclusive", id="contains 1, too wide to decide"),
        pytest.param(effect(1.00, 1.01, 1.02), MOVED, "inconclusive", id="identical runs differed"),
        pytest.param(effect(1.02, 1.10, 1.20), MOVED, "inconclusive", id="identical runs differed, partly beyond"),
        pytest.param(effect(1.30, 1.40, 1.50), MOVED, "confirmed", id="identical runs differed, wholly beyond"),
        pytest.param(effect(0.60, 0.70, 0.80), MOVED, "regressed", id="identical runs differed, wholly below"),
    ],
)
def test_each_verdict_follows_its_documented_rule(measured: Estimate, control: Estimate, verdict: Verdict) -> None:
    assert judge(measured, control, PAIRS).verdict == verdict


def test_fewer_than_eight_pairs_are_never_enough() -> None:
    clear = effect(1.9, 2.0, 2.1)
    assert judge(clear, STEADY, FEWEST_PAIRS - 1).verdict == "inconclusive"
    assert judge(clear, STEADY, FEWEST_PAIRS).verdict == "confirmed"


ratios = st.floats(0.3, 3.0)


@given(st.lists(ratios, min_size=3, max_size=3), st.lists(ratios, min_size=3, max_size=3))
def test_every_verdict_fits_its_interval(measured: Times, identical: Times) -> None:
    interval = Interval(min(measured), max(measured))
    low, middle, high = sorted(identical)
    judgement = judge(Estimate(median(measured), interval), effect(low, middle, high), PAIRS)
    assert judgement.reason.endswith(".")
    if judgement.verdict == "confirmed":
        assert interval.low > 1
    if judgement.verdict == "regressed":
        assert interval.high < 1
    if judgement.verdict == "no-change":
        assert max(interval.high, 1 / interval.low) <= (1 + RESOLUTION) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("before", "after", "strict_interval"),
    [
        ([1.0] * 7 + [1.5], [2.0] * 7 + [4.0], Interval(0.25, 0.75)),
        ([2.0] * 7 + [4.0], [1.0] * 7 + [1.5], Interval(2.0 / 1.5, 4.0)),
        ([1.0] * 7 + [2.0], [2.0] * 8, Interval(0.0, math.inf)),  # one run is as slow as the others
        ([2.0] * 8, [1.0] * 7 + [2.0], Interval(0.0, math.inf)),
        ([2.0] * 7, [1.0] * 7, Interval(0.0, math.inf)),  # too few pairs, although without overlap
        ([2.0] * 15, [1.0] * 15, Interval(2.0, 2.0)),  # enough for order statistics
    ],
)
def test_few_pairs_are_strict_evidence_only_without_overlap(
    before: Times, after: Times, strict_interval: Interval
) -> None:
    assert paired_ratio(before, after).strict_interval == strict_interval


def early_verdict(draw_run: Callable[[float], float], order: random.Random, true_ratio: float) -> Verdict | None:
    """The verdict of the rule for few pairs, checked after each pair until the first full check."""
    before, after = Times(), Times()
    for _ in range(FEWEST_PAIRS - 1):
        for times, seconds in order.sample(((before, true_ratio), (after, 1.0)), 2):
            times.append(draw_run(seconds))
        if (judgement := judge_far_apart(before, after)) is not None:
            return judgement.verdict
    return None


NOISES: dict[str, Callable[[random.Random], float]] = {
    "none but 1 %": lambda draws: draws.lognormvariate(0, 0.01),
    "30 %": lambda draws: draws.lognormvariate(0, 0.3),
    "a few very slow runs": lambda draws: draws.paretovariate(0.7),
    "two speeds": lambda draws: draws.choice((1.0, 1.6)) * draws.lognormvariate(0, 0.001),
    "two speeds, rarely the slow one": lambda draws: draws.choice((1.0, 1.0, 3.0)) * draws.lognormvariate(0, 0.001),
}  # fmt: skip


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_identical_variants_are_rarely_far_apart_on_any_machine(noise: Callable[[random.Random], float]) -> None:
    draws, experiments = random.Random(4), 20_000
    found = [early_verdict(lambda seconds: seconds * noise(draws), draws, 1.0) for _ in range(experiments)]
    # Of 4**n ways to distribute n pairs over two clusters, 2 are those of the two sides.
    bound = sum(2 / 4**pairs for pairs in range(EARLY_PAIRS, FEWEST_PAIRS))
    assert bound < 1 / 380
    three_deviations = 3 * math.sqrt(bound / experiments)
    assert sum(verdict is not None for verdict in found) <= (bound + three_deviations) * experiments


def test_identical_variants_are_never_far_apart_on_a_shared_machine() -> None:
    found = [early_verdict(machine(random.Random(seed)), random.Random(seed), 1.0) for seed in range(2000)]
    assert found == [None] * 2000


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, "confirmed"), (1 / 1.5, "regressed")])
def test_a_large_difference_is_mostly_found_after_few_pairs(ratio: float, verdict: Verdict) -> None:
    found = []
    for seed in range(EXPERIMENTS):
        draws = random.Random(seed)
        found.append(early_verdict(lambda seconds, d=draws: seconds * d.lognormvariate(0, 0.03), draws, ratio))  # type: ignore[misc]
    assert found.count(verdict) > 0.95 * EXPERIMENTS
    assert set(found) <= {verdict, None}


@pytest.mark.parametrize(("before", "after"), [
    ([2.0] * (EARLY_PAIRS - 1), [1.0] * (EARLY_PAIRS - 1)),
    ([1.015] * EARLY_PAIRS, [1.0] * EARLY_PAIRS),
    ([2.0, 2.0, 2.0, 2.0, 4.5], [1.0] * EARLY_PAIRS),
    ([2.0, 2.0, 2.0, 2.0, 0.9], [1.0] * EARLY_PAIRS),
], ids=["too few pairs", "two copies differ", "one side differs more", "one slow run is fast"])  # fmt: skip
def test_few_pairs_decide_nothing_unless_the_sides_are_far_apart(before: Times, after: Times) -> None:
    assert judge_far_apart(before, after) is None
    assert judge_far_apart(after, before) is None
