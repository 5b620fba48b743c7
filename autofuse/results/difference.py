"""The difference of two profiles that were measured in separate runs, and its verdict. No torch.

Separate runs also differ because the machine does: of identical models measured one after the other on a shared
machine, about half differed "significantly". So the verdict needs the agreement of several ways to compare, which are
robust against different disturbances:

- the medians of the steps, robust if fewer than half of the steps are disturbed;
- the lower quartiles, robust if fewer than three quarters are, because disturbances only make steps longer;
- the sums of all steps, each divided by the sum of the yardsticks timed next to them, because a slower or busier
  machine makes both longer.

If the machine was in different states, they disagree, and the interval that contains all of them is wide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autofuse.results.comparison import Comparison, Estimate, Interval, Verdict
from autofuse.results.medians import percentile_interval
from autofuse.results.profile import Profile

# Two runs of one program differ by addresses, clock speed and other programs: less than a tenth is not a difference.
# Interleaved pairs resolve smaller differences (autofuse.compare).
BETWEEN_RUNS = 0.10
FEWEST_STEPS = 8
_LEVEL, _RESAMPLES = 0.99, 500
# If one of these differs, the two runs differ by more than the change to be measured.
_SAME = ("torch", "device", "threads", "processor", "cores", "platform", "cuda")
_INTERLEAVED = "autofuse.compare(before, after, inputs) measures both in one process and shows smaller differences."


@dataclass(frozen=True)
class MeasuredSide:
    """One side: the seconds of its steps, and of the yardstick next to each; empty if none was timed."""

    seconds: tuple[float, ...]
    yardstick: tuple[float, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The difference of two files.

    Attributes:
        verdict: as in a comparison.
        reason: the sentence that says why.
        ratio: time before / after, above 1 if `after` is faster. Its interval contains the results of all ways to
            compare.
        caveats: what differs between the runs, in sentences.
        interleaved: whether the times were taken in pairs, in one process.
    """

    verdict: Verdict
    reason: str
    ratio: Estimate | None
    caveats: tuple[str, ...] = ()
    interleaved: bool = False

    @property
    def summary(self) -> str:
        """One line: verdict, ratio and interval."""
        how = "interleaved" if self.interleaved else "measured apart"
        return f"{self.verdict}: {self.ratio} ({how})" if self.ratio else f"{self.verdict} ({how})"


def of_profiles(before: Profile, after: Profile, *, anyway: bool = False) -> Difference:
    """The difference of two profiles. anyway: judge also runs under different conditions."""
    sides = [MeasuredSide(p.timing.seconds, p.timing.yardstick) for p in (before, after)]
    caveats = [*_environment_differences(before.environment, after.environment), *_work_differences(before, after)]
    return judge_sides(sides[0], sides[1], caveats, anyway=anyway)


def of_comparisons(before: Comparison, after: Comparison, *, anyway: bool = False) -> Difference:
    """The difference of the optimized sides of two comparisons; their original sides are the yardsticks."""
    sides = [MeasuredSide(c.after_seconds, c.before_seconds) for c in (before, after)]
    return judge_sides(
        sides[0], sides[1], _environment_differences(before.environment, after.environment), anyway=anyway
    )


def of_comparison(comparison: Comparison) -> Difference:
    """A comparison of interleaved pairs keeps its verdict."""
    ratio = Estimate(comparison.ratio, comparison.interval)
    return Difference(comparison.verdict, comparison.reason, ratio, interleaved=True)


def judge_sides(
    before: MeasuredSide, after: MeasuredSide, caveats: Sequence[str] = (), *, anyway: bool = False
) -> Difference:
    """The verdict on steps that were timed apart.

    `confirmed` if every way to compare shows that the steps are faster by more than 10 %, with its 99 % interval;
    `regressed` likewise; `no-change` if all show less than 10 %; otherwise `inconclusive`. Also `inconclusive` if fewer
    than 8 steps were timed, and, unless `anyway`, if there are caveats or no yardsticks.
    """
    ratio = _ratio_of_medians(before, after)
    found = tuple(caveats)
    if ratio is None:
        return Difference("inconclusive", "No step of one of the two was timed.", None, found)
    fewest = min(len(before.seconds), len(after.seconds))
    if fewest < FEWEST_STEPS:
        why = f"Only {fewest} steps were timed; a verdict needs at least {FEWEST_STEPS}."
        return Difference("inconclusive", why, ratio, found)
    if found and not anyway:
        why = "The two were not measured under the same conditions: " + " ".join(found)
        return Difference("inconclusive", f"{why} With --anyway they are judged nevertheless.", ratio, found)
    if not (_has_yardsticks(before) and _has_yardsticks(after)) and not anyway:
        why = "No yardstick was timed next to the steps, so a slower machine and a slower model look alike."
        return Difference("inconclusive", f"{why} With --anyway they are judged nevertheless.", ratio, found)
    return Difference(*_verdict(ratio.interval), ratio, found)


def _verdict(interval: Interval) -> tuple[Verdict, str]:
    least = f"more than the {BETWEEN_RUNS:.0%} that two runs of one program may differ by"
    if interval.low > 1 + BETWEEN_RUNS:
        return "confirmed", f"Every way to compare the two runs shows a gain, of {least}."
    if interval.high < 1 / (1 + BETWEEN_RUNS):
        return "regressed", f"Every way to compare the two runs shows a loss, of {least}."
    if interval.low >= 1 / (1 + BETWEEN_RUNS) and interval.high <= 1 + BETWEEN_RUNS:
        return "no-change", f"Every way to compare the two runs shows less than {BETWEEN_RUNS:.0%}."
    return (
        "inconclusive",
        f"The two runs were measured separately, which cannot show such a small difference. {_INTERLEAVED}",
    )


def _ratio_of_medians(before: MeasuredSide, after: MeasuredSide) -> Estimate | None:
    """The ratio of the medians. Its interval contains the interval of each way to compare."""
    if not before.seconds or not after.seconds or min(*before.seconds, *after.seconds) <= 0:
        return None
    ways: list[Callable[[Sequence[int], Sequence[int]], float]] = [
        _ratio_function(before, after, median),
        _ratio_function(before, after, lambda times: sorted(times)[(len(times) - 1) // 4]),
    ]
    if _has_yardsticks(before) and _has_yardsticks(after):
        ways.append(_ratio_in_yardsticks(before, after))
    intervals = [_bootstrap_interval(way, len(before.seconds), len(after.seconds)) for way in ways]
    envelope = Interval(min(i.low for i in intervals), max(i.high for i in intervals))
    return Estimate(median(before.seconds) / median(after.seconds), envelope)


def _ratio_function(
    before: MeasuredSide, after: MeasuredSide, typical: Callable[[Sequence[float]], float]
) -> Callable[..., float]:
    def ratio(ones: Sequence[int], others: Sequence[int]) -> float:
        return typical([before.seconds[i] for i in ones]) / typical([after.seconds[i] for i in others])

    return ratio


def _ratio_in_yardsticks(before: MeasuredSide, after: MeasuredSide) -> Callable[..., float]:
    """A function of step indices: the ratio of summed step times, each sum divided by the sum of its yardsticks."""

    def of(side: MeasuredSide, chosen: Sequence[int]) -> float:
        return sum(side.seconds[i] for i in chosen) / sum(side.yardstick[i] for i in chosen)

    return lambda ones, others: of(before, ones) / of(after, others)


def _bootstrap_interval(way: Callable[[Sequence[int], Sequence[int]], float], ones: int, others: int) -> Interval:
    """The interval of the percentile bootstrap. The runs are resampled independently, each step with its yardstick."""
    draws = random.Random(0)
    found = [way(draws.choices(range(ones), k=ones), draws.choices(range(others), k=others)) for _ in range(_RESAMPLES)]
    return percentile_interval(found, _LEVEL)


def _has_yardsticks(side: MeasuredSide) -> bool:
    return len(side.yardstick) == len(side.seconds) and min(side.yardstick, default=0) > 0


def _environment_differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The differences between the environments, in sentences."""
    return [
        f"{name}: {before.get(name, 'not known')} before, {after.get(name, 'not known')} after."
        for name in _SAME
        if before.get(name) != after.get(name)
    ]


def _work_differences(before: Profile, after: Profile) -> list[str]:
    """The differences between the work of the two steps, in sentences."""
    asked = (
        ("samples in a step", before.timing.samples, after.timing.samples),
        ("tokens in a step", before.timing.tokens, after.timing.tokens),
        ("model FLOPs of a step", before.flops.model, after.flops.model),
        ("processes", max(1, len(before.ranks)), max(1, len(after.ranks))),
    )
    return [
        f"{what}: {one:,} before, {other:,} after."
        for what, one, other in asked
        if one is not None and other is not None and one != other
    ]
