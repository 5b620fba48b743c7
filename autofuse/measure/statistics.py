"""From two lists of paired times to a ratio, its interval, a control and a verdict. It knows numbers only, no torch.

The interval is the percentile bootstrap (B. Efron, "Bootstrap methods: another look at the jackknife", 1979) over
pairs; why a ratio with an interval and not a test: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable
time", 2013. The A/A control is the same estimate made of identical runs: it shows what this machine, now, makes of
no difference at all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autofuse.report.comparison import Estimate, Interval, Verdict

LEVEL = 0.95
RESAMPLES = 2000
FEWEST_PAIRS = 8
# A run that cannot tell a tenth faster from a tenth slower has not shown that nothing changed.
RESOLUTION = 0.10

Typical = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentence that says why."""

    verdict: Verdict
    reason: str


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
    ratios.sort()
    outside = (1 - LEVEL) / 2
    interval = Interval(ratios[math.floor(outside * resamples)], ratios[math.ceil((1 - outside) * resamples) - 1])
    return Estimate(typical(before) / typical(after), interval)


def control(
    before: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, typical: Typical = median
) -> Estimate:
    """The A/A control: half of the before-runs against the other half.

    Neighbours in time form the pairs, as in the comparison itself, and chance decides which of the two plays "after".
    Needs two runs; an odd last one is left out.
    """
    if len(before) < 2:
        raise ValueError(f"An A/A control needs at least two runs to compare with each other; there are {len(before)}.")
    draws = random.Random(seed)
    pairs = [draws.sample((one, other), 2) for one, other in zip(before[::2], before[1::2], strict=False)]
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    return estimate(ones, others, seed=seed, resamples=resamples, typical=typical)


def judge(effect: Estimate, control: Estimate, pairs: int) -> Judgement:
    """One of four verdicts on an effect, in the light of what identical runs showed.

    The *noise* is the farther end of the control's interval, as a factor: identical runs may differ by that much.

    - `inconclusive` where fewer than 8 pairs were measured;
    - `confirmed` where the whole interval lies above 1 and the ratio above the noise; `regressed` likewise below.
      Where the control itself excludes 1 (the machine changed under the measurement), the whole interval must lie
      beyond the noise;
    - `inconclusive` where the control excludes 1 otherwise, where the interval reaches farther than 10 % from 1, or
      where it excludes 1 by a ratio that identical runs reach too;
    - `no-change` for what is left: an interval within 10 % of 1 that contains 1 or lies within the noise.
    """
    if pairs < FEWEST_PAIRS:
        return Judgement("inconclusive", f"{pairs} pairs were measured; below {FEWEST_PAIRS} an interval means little.")
    noise = max(abs(math.log(end)) for end in control.interval)
    steady = 1 in control.interval
    nearest = effect.ratio if steady else min(effect.interval, key=lambda end: abs(math.log(end)))
    if 1 not in effect.interval and abs(math.log(nearest)) > noise:
        return _changed(effect)
    if not steady:
        return Judgement("inconclusive", "Identical runs differed from each other: the machine was not steady.")
    return _unchanged(effect, noise)


def _changed(effect: Estimate) -> Judgement:
    if effect.ratio > 1:
        return Judgement("confirmed", "The interval lies above 1, by more than identical runs differ.")
    return Judgement("regressed", "The interval lies below 1, by more than identical runs differ.")


def _unchanged(effect: Estimate, noise: float) -> Judgement:
    reach = max(abs(math.log(end)) for end in effect.interval)
    if reach > math.log1p(RESOLUTION):
        return Judgement("inconclusive", f"The interval reaches more than {RESOLUTION:.0%} from 1: too wide to tell.")
    if 1 not in effect.interval and reach > noise:
        return Judgement("inconclusive", "The interval excludes 1, but identical runs differ by as much as the ratio.")
    if 1 in effect.interval:
        return Judgement(
            "no-change", f"The interval contains 1 and does not reach farther than {RESOLUTION:.0%} from it."
        )
    return Judgement("no-change", "The whole interval lies within what identical runs differ by.")


def _check(before: Sequence[float], after: Sequence[float]) -> None:
    if not before or len(before) != len(after):
        raise ValueError(f"Times come in pairs, and at least one; got {len(before)} before and {len(after)} after.")
    if not all(0 < seconds < math.inf for seconds in (*before, *after)):
        raise ValueError("Every time must be positive and finite: a ratio of medians has no meaning otherwise.")
