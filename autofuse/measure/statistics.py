"""Computes a ratio, its interval, a control and a verdict from two lists of paired times. Works without torch.

There are two estimates:

- `paired_ratio` decides verdicts. It is the median of the ratios of pairs. Its interval comes from order statistics
  (medians.py), and assumes only that chance ordered each pair.
- `estimate` compares a typical number of each list, such as the lower quartile, by the percentile bootstrap over pairs
  (B. Efron, "Bootstrap methods: another look at the jackknife", 1979). If the speed of the machine jumps, the medians
  of lists jump too.

An A/A control is the same estimate for identical runs. It shows the noise of the machine at this time.

T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", 2013, explain why to report a ratio with an
interval and not a test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autofuse.results.comparison import Estimate, Interval, Verdict
from autofuse.results.medians import interval_at, median_interval, percentile_interval

LEVEL = 0.95
# The level for verdicts. A verdict is checked up to five times, and an interval at LEVEL misses the true ratio once in
# twenty times. An interval at this level misses it once in ten thousand times.
STRICT_LEVEL = 0.9999
RESAMPLES = 2000
FEWEST_PAIRS = 8
# Long steps may be judged after this many pairs, if both sides are far apart (`judge_far_apart`).
EARLY_PAIRS = 5
# "no-change" needs an interval within 10 % of 1.
RESOLUTION = 0.10
# Two copies of one model have different memory addresses. That alone makes a step a percent or two faster or slower
# (T. Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", 2009).
LAYOUT_EFFECT = 0.02
_UNBOUNDED = Interval(0.0, math.inf)

Typical = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Judgement:
    """A verdict and a sentence with its reason."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class PairedRatio:
    """The ratio before / after of paired times.

    Attributes:
        estimate: The ratio, with a 95 % interval.
        strict_interval: An interval that contains the true ratio in 9,999 of 10,000 cases. It is (0, inf) if there are
            too few pairs.
    """

    estimate: Estimate
    strict_interval: Interval


def paired_ratio(before: Sequence[float], after: Sequence[float]) -> PairedRatio:
    """Returns the median of the ratios before / after of all pairs. More than 1 means that `after` is faster.

    `before[i]` and `after[i]` were measured one after the other, in random order. The interval contains the true
    median in 95 of 100 cases. For fewer than six pairs it is the whole range, with a lower level.

    Raises:
        ValueError: The lists are empty, differ in length, or contain a time that is not positive and finite.
    """
    _check_times(before, after)
    ratios = [b / a for b, a in zip(before, after, strict=True)]
    # The logarithm makes the ratio after / before the exact inverse of this one.
    ratio = math.exp(median(math.log(r) for r in ratios))
    interval = median_interval(ratios)
    strict_interval = interval_at(ratios, STRICT_LEVEL)
    if strict_interval is None and len(ratios) >= FEWEST_PAIRS:
        strict_interval = _separation_interval(before, after)
    return PairedRatio(Estimate(ratio, interval), strict_interval or _UNBOUNDED)


def _separation_interval(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Returns an interval for few pairs if every run of one side is slower than every run of the other; else None.

    For 8 and 8 identical runs this happens by chance in 1 of 6,435 cases.
    """
    low, high = min(before) / max(after), max(before) / min(after)
    return Interval(low, high) if low > 1 or high < 1 else None


def estimate(
    before: Sequence[float], after: Sequence[float], *,
    seed: int = 0, resamples: int = RESAMPLES, typical: Typical = median,
) -> Estimate:  # fmt: skip
    """Returns median(before) / median(after), with a 95 % interval. More than 1 means that `after` is faster.

    Args:
        before: Seconds of the first action.
        after: Seconds of the second action. `before[i]` and `after[i]` were measured one after the other. The
            bootstrap draws pairs, because a disturbance affects both times of a pair.
        seed: The seed of the bootstrap.
        resamples: How many times the bootstrap draws.
        typical: A function to use instead of the median.

    Raises:
        ValueError: The lists are empty, differ in length, or contain a time that is not positive and finite.
    """
    _check_times(before, after)
    draws = random.Random(seed)
    positions = range(len(before))
    ratios = []
    for _ in range(resamples):
        sample = draws.choices(positions, k=len(before))
        ratios.append(typical([before[i] for i in sample]) / typical([after[i] for i in sample]))
    return Estimate(typical(before) / typical(after), percentile_interval(ratios, LEVEL))


def control(
    before: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, typical: Typical = median
) -> Estimate:
    """Returns the A/A control of `estimate`: one half of the runs against the other half.

    Consecutive runs form the pairs, as in the comparison itself, and chance decides which of the two counts as
    "after". If the number of runs is odd, the last run is left out.

    Raises:
        ValueError: There are fewer than two runs.
    """
    return estimate(*_split_in_halves(before, seed), seed=seed, resamples=resamples, typical=typical)


def identical_runs_ratio(before: Sequence[float], *, seed: int = 0) -> Estimate:
    """Returns the A/A control of `paired_ratio`, with the same pairs as `control`."""
    return paired_ratio(*_split_in_halves(before, seed)).estimate


def _split_in_halves(before: Sequence[float], seed: int) -> tuple[list[float], list[float]]:
    if len(before) < 2:
        raise ValueError(f"An A/A control needs at least two runs to compare with each other; there are {len(before)}.")
    draws = random.Random(seed)
    pairs = [draws.sample((first, second), 2) for first, second in zip(before[::2], before[1::2], strict=False)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def judge(effect: Estimate, control: Estimate, pairs: int, strict_interval: Interval | None = None) -> Judgement:
    """Returns a verdict on an effect.

    The *noise* is the end of the control's interval that is farther from 1, as a factor. Identical runs may differ by
    that much. The first of these rules that applies decides:

    1. `inconclusive`: there are fewer than 8 pairs.
    2. `confirmed`: the whole interval is above 1.02 (two copies of one model differ by up to 2 %), the strict interval
       is above 1, and the ratio is above the noise. `regressed`: the same below 1. If the control's interval does not
       contain 1, the machine was not steady, and the whole interval must be beyond the noise.
    3. `inconclusive`: the control's interval does not contain 1; or the interval reaches farther than 10 % from 1; or
       it does not contain 1, but identical runs differ as much.
    4. `no-change`: the interval contains 1, or is within the noise, or within 2 % of 1.

    Args:
        effect: The ratio of the comparison.
        control: The ratio of identical runs.
        pairs: The number of pairs.
        strict_interval: The effect's interval at STRICT_LEVEL; by default its own interval.
    """
    if pairs < FEWEST_PAIRS:
        return Judgement("inconclusive", f"Only {pairs} pairs were measured: a verdict needs {FEWEST_PAIRS} or more.")
    noise = max(abs(math.log(end)) for end in control.interval)
    is_steady = 1 in control.interval
    least_effect = effect.ratio if is_steady else min(effect.interval, key=lambda end: abs(math.log(end)))
    excludes_one = _is_beyond_layout_effect(effect.interval) and 1 not in (strict_interval or effect.interval)
    if excludes_one and abs(math.log(least_effect)) > noise:
        return _judge_change(effect)
    if not is_steady:
        return Judgement("inconclusive", "Identical runs differed from each other: the machine was not steady.")
    return _judge_no_change(effect, noise)


def judge_far_apart(before: Sequence[float], after: Sequence[float]) -> Judgement | None:
    """Returns a verdict after few pairs if the times of both sides are far apart, else None.

    Every run of one side must be slower than every run of the other, by more than 2 %, and by more than the runs of
    either side differ from each other. So the times form two clusters. If both sides are identical, each run is in
    either cluster by chance, and at most 2 of the 4**n ways to distribute n pairs are those of the two sides. The rule
    is used after 5, 6 and 7 pairs. In total it calls identical variants different in at most 1 of 380 comparisons, on a
    machine that jumps between two speeds at random. With any other noise, clusters are rare.

    Raises:
        ValueError: As in `paired_ratio`.
    """
    _check_times(before, after)
    if len(before) < EARLY_PAIRS:
        return None
    fast, slow = sorted((before, after), key=min)
    gap = min(slow) / max(fast)
    if gap <= max(1 + LAYOUT_EFFECT, *(max(side) / min(side) for side in (fast, slow))):
        return None
    verdict: Verdict = "confirmed" if slow is before else "regressed"
    return Judgement(
        verdict,
        "Every run of one side is slower than every run of the other, by more than the runs of either side differ.",
    )


def _is_beyond_layout_effect(interval: Interval) -> bool:
    return interval.low > 1 + LAYOUT_EFFECT or interval.high < 1 / (1 + LAYOUT_EFFECT)


def _judge_change(effect: Estimate) -> Judgement:
    if effect.ratio > 1:
        return Judgement("confirmed", "The interval is above 1, by more than identical runs differ.")
    return Judgement("regressed", "The interval is below 1, by more than identical runs differ.")


def _judge_no_change(effect: Estimate, noise: float) -> Judgement:
    farthest = max(abs(math.log(end)) for end in effect.interval)
    if farthest > math.log1p(RESOLUTION):
        return Judgement("inconclusive", f"The interval reaches more than {RESOLUTION:.0%} from 1: too wide to decide.")
    if 1 not in effect.interval and farthest > max(noise, math.log1p(LAYOUT_EFFECT)):
        if abs(math.log(effect.ratio)) <= noise:
            why = "but identical runs differ by as much as the ratio."
        else:
            why = "but the evidence is too weak, or two copies of one model differ as much: measure more pairs."
        return Judgement("inconclusive", f"The interval excludes 1, {why}")
    if 1 in effect.interval:
        return Judgement(
            "no-change", f"The interval contains 1 and does not reach farther than {RESOLUTION:.0%} from it."
        )
    return Judgement("no-change", "The whole interval is within the difference of identical runs or of two copies.")


def _check_times(before: Sequence[float], after: Sequence[float]) -> None:
    if not before or len(before) != len(after):
        raise ValueError(f"Times must be one or more pairs; got {len(before)} before and {len(after)} after.")
    if not all(0 < seconds < math.inf for seconds in (*before, *after)):
        raise ValueError("Every time must be positive and finite; otherwise a ratio has no meaning.")
