"""From two lists of paired times to a ratio, its interval, a control and a verdict. It knows numbers only, no torch.

Two estimates. `paired` is what verdicts rest on: the median of the pairs' own ratios, with order statistics as its
interval (medians.py), which assumes nothing but that chance ordered each pair. `estimate` compares a typical number of
each list, the lower quartile for one, by the percentile bootstrap over pairs (B. Efron, "Bootstrap methods: another
look at the jackknife", 1979); on machines whose speed jumps, medians of lists jump with it. Why a ratio with an
interval and not a test: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", 2013. An A/A control is
the same estimate made of identical runs: it shows what this machine, now, makes of no difference at all.
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
# What a verdict takes. The interval that is shown is looked at up to five times, and leaves out the truth once in
# twenty; this one leaves it out once in ten thousand.
SURE = 0.9999
RESAMPLES = 2000
FEWEST_PAIRS = 8
# A run that cannot tell a tenth faster from a tenth slower has not shown that nothing changed.
RESOLUTION = 0.10
# Two copies of one model lie at different addresses, and that alone makes a step a percent or two faster or slower
# (T. Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", 2009).
LAYOUT = 0.02
_ANYTHING = Interval(0.0, math.inf)

Typical = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentence that says why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Paired:
    """The ratio before / after of times in pairs. `sure` is an interval that holds the truth in 9,999 of 10,000 cases;
    from nothing to infinity where the pairs are too few for any."""

    estimate: Estimate
    sure: Interval


def paired(before: Sequence[float], after: Sequence[float]) -> Paired:
    """The median of the pairs' ratios, before / after, so that above 1 means that `after` is faster.

    The i-th of both were measured next to each other, in an order that chance decided. The interval holds the true
    median in 95 of 100 cases; of fewer than six pairs it is the whole range, which is less sure than that. Raises
    ValueError where the lists are empty, differ in length or hold a time that is not positive and finite.
    """
    _check(before, after)
    ratios = [b / a for b, a in zip(before, after, strict=True)]
    middle = math.exp(median(math.log(ratio) for ratio in ratios))  # so that turning the sides round inverts it
    interval = median_interval(ratios)
    sure = interval_at(ratios, SURE)
    if sure is None and len(ratios) >= FEWEST_PAIRS:
        sure = _apart(before, after)
    return Paired(Estimate(middle, interval), sure or _ANYTHING)


def _apart(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Of few pairs only lists that do not overlap are sure evidence: every run of one side slower than any of the
    other. Of 8 and 8 equal runs, 1 in 6,435 falls so."""
    low, high = min(before) / max(after), max(before) / min(after)
    return Interval(low, high) if low > 1 or high < 1 else None


def estimate(
    before: Sequence[float], after: Sequence[float], *,
    seed: int = 0, resamples: int = RESAMPLES, typical: Typical = median,
) -> Estimate:  # fmt: skip
    """median(before) / median(after), so that above 1 means that `after` is faster, with a 95 % interval.

    `typical` takes the median's place where another number is to stand for a list.

    The i-th of both were measured next to each other; the bootstrap draws such pairs, so that what slowed both down
    stays in both. Raises ValueError where the lists are empty, differ in length or hold a time that is not positive.
    """
    _check(before, after)
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
    """The A/A control of `estimate`: half of the before-runs against the other half.

    Neighbours in time form the pairs, as in the comparison itself, and chance decides which of the two plays "after".
    Needs two runs; an odd last one is left out.
    """
    return estimate(*_halves(before, seed), seed=seed, resamples=resamples, typical=typical)


def paired_control(before: Sequence[float], *, seed: int = 0) -> Estimate:
    """The A/A control of `paired`, made like that of `estimate`."""
    return paired(*_halves(before, seed)).estimate


def _halves(before: Sequence[float], seed: int) -> tuple[list[float], list[float]]:
    if len(before) < 2:
        raise ValueError(f"An A/A control needs at least two runs to compare with each other; there are {len(before)}.")
    draws = random.Random(seed)
    pairs = [draws.sample((one, other), 2) for one, other in zip(before[::2], before[1::2], strict=False)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def judge(effect: Estimate, control: Estimate, pairs: int, sure: Interval | None = None) -> Judgement:
    """One of four verdicts on an effect, in the light of what identical runs showed.

    The *noise* is the farther end of the control's interval, as a factor: identical runs may differ by that much.
    `sure` is the effect's interval at a stricter level; without one, the interval itself takes its place.

    - `inconclusive` where fewer than 8 pairs were measured;
    - `confirmed` where the whole interval lies above 1.02 (less is what two copies of one model differ by), the sure
      one above 1, and the ratio above the noise; `regressed` likewise below. Where the control itself excludes 1 (the
      machine changed under the measurement), the whole interval must lie beyond the noise;
    - `inconclusive` where the control excludes 1 otherwise, where the interval reaches farther than 10 % from 1, or
      where it excludes 1 by a ratio that identical runs reach too;
    - `no-change` for what is left: an interval within 10 % of 1 that contains 1, or lies within the noise, or within
      2 % of 1.
    """
    if pairs < FEWEST_PAIRS:
        return Judgement("inconclusive", f"{pairs} pairs were measured; below {FEWEST_PAIRS} an interval means little.")
    noise = max(abs(math.log(end)) for end in control.interval)
    steady = 1 in control.interval
    nearest = effect.ratio if steady else min(effect.interval, key=lambda end: abs(math.log(end)))
    if _beyond_layout(effect.interval) and 1 not in (sure or effect.interval) and abs(math.log(nearest)) > noise:
        return _changed(effect)
    if not steady:
        return Judgement("inconclusive", "Identical runs differed from each other: the machine was not steady.")
    return _unchanged(effect, noise)


def _beyond_layout(interval: Interval) -> bool:
    return interval.low > 1 + LAYOUT or interval.high < 1 / (1 + LAYOUT)


def _changed(effect: Estimate) -> Judgement:
    if effect.ratio > 1:
        return Judgement("confirmed", "The interval lies above 1, by more than identical runs differ.")
    return Judgement("regressed", "The interval lies below 1, by more than identical runs differ.")


def _unchanged(effect: Estimate, noise: float) -> Judgement:
    reach = max(abs(math.log(end)) for end in effect.interval)
    if reach > math.log1p(RESOLUTION):
        return Judgement("inconclusive", f"The interval reaches more than {RESOLUTION:.0%} from 1: too wide to tell.")
    if 1 not in effect.interval and reach > max(noise, math.log1p(LAYOUT)):
        if abs(math.log(effect.ratio)) <= noise:
            why = "but identical runs differ by as much as the ratio."
        else:
            why = "but not surely enough, or not by more than two copies of one model do: measure more pairs."
        return Judgement("inconclusive", f"The interval excludes 1, {why}")
    if 1 in effect.interval:
        return Judgement(
            "no-change", f"The interval contains 1 and does not reach farther than {RESOLUTION:.0%} from it."
        )
    return Judgement("no-change", "The whole interval lies within what identical runs, or two copies, differ by.")


def _check(before: Sequence[float], after: Sequence[float]) -> None:
    if not before or len(before) != len(after):
        raise ValueError(f"Times come in pairs, and at least one; got {len(before)} before and {len(after)} after.")
    if not all(0 < seconds < math.inf for seconds in (*before, *after)):
        raise ValueError("Every time must be positive and finite: a ratio of medians has no meaning otherwise.")
