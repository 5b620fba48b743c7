"""Decides how many pairs to time, and by which clock to compare them.

Pairs are timed until the verdict is clear. It is checked after 30, 60, 100, 150 and 200 pairs. Each check is so strict
(statistics.STRICT_LEVEL) that all five together call identical variants different in at most 1 of 2,000 comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from autofuse.measure.core_queue import seconds_in_queue
from autofuse.measure.statistics import Judgement, identical_runs_ratio, judge, judge_far_apart, paired_ratio
from autofuse.measure.timing import CROWDED_SHARE, ONE_CORE_SHARE, Action, Pairs, Timings, without_garbage_collection
from autofuse.results.comparison import Estimate

PAIR_COUNTS = (30, 60, 100, 150, 200)
TIME_LIMIT = 45.0  # seconds; afterwards no further pair starts, if there are enough for the first check
# "no-change" is clear if the whole interval is this close to 1.
NO_CHANGE_LIMIT = 0.06
_TRIAL = 5  # pairs that show whether steps stay on one core

Clock = Literal["wall", "core"]


@dataclass(frozen=True)
class JudgedTimings:
    """Timed pairs with their verdict.

    Attributes:
        timings: The seconds of every run.
        clock: The clock that the comparison uses.
        effect: The ratio before / after.
        control: The ratio of identical runs.
        judgement: The verdict and its reason.
        threads: The number of torch's threads during the runs.
    """

    timings: Timings
    clock: Clock
    effect: Estimate
    control: Estimate
    judgement: Judgement
    threads: int


def time_and_judge(
    before: Action, after: Action, *,
    pairs: int | None, seed: int, device: torch.device, done: Callable[[], None] = lambda: None,
) -> JudgedTimings:  # fmt: skip
    """Times pairs of two warm actions, and judges them.

    Args:
        before: The first action.
        after: The second action.
        pairs: How many pairs to time; None for as many as a clear verdict needs.
        seed: The seed of the order within pairs.
        device: The device of the actions.
        done: A function that is called after each pair.
    """
    with without_garbage_collection():
        return _time_until_clear(
            Pairs(before, after, device, seed), PAIR_COUNTS if pairs is None else (pairs,), seed, done
        )


def judge_timings(timings: Timings, seed: int) -> JudgedTimings:
    """Judges timed pairs, by the core's clock if other programs kept the cores busy."""
    uses_core_clock, before, after = _choose_clock(timings)
    ratio, noise = paired_ratio(before, after), identical_runs_ratio(before, seed=seed)
    judgement = judge(ratio.estimate, noise, len(before), ratio.strict_interval)
    return JudgedTimings(
        timings, "core" if uses_core_clock else "wall", ratio.estimate, noise, judgement, torch.get_num_threads()
    )


def judge_early(timings: Timings, seed: int) -> JudgedTimings | None:
    """Judges few timed pairs if both sides are far apart (statistics.judge_far_apart), else returns None."""
    _, before, after = _choose_clock(timings)
    early = judge_far_apart(before, after)
    return None if early is None else replace(judge_timings(timings, seed), judgement=early)


def _choose_clock(timings: Timings) -> tuple[bool, Sequence[float], Sequence[float]]:
    """Whether the core's clock is used, and the times of both sides by that clock."""
    if (timings.waiting or 0.0) > CROWDED_SHARE:
        return True, timings.before_core, timings.after_core
    return False, timings.before, timings.after


def _time_until_clear(series: Pairs, counts: Sequence[int], seed: int, done: Callable[[], None]) -> JudgedTimings:
    start = time.perf_counter()
    for count in counts:
        while len(series.runs[0]) < count:
            if len(series.runs[0]) >= counts[0] and time.perf_counter() - start > TIME_LIMIT:
                return judge_timings(series.timings(), seed)
            series.run(1, done)
        result = judge_timings(series.timings(), seed)
        if _is_clear(result):
            return result
    return result


def _is_clear(result: JudgedTimings) -> bool:
    if result.judgement.verdict == "no-change":
        low, high = result.effect.interval
        return max(high, 1 / low) <= 1 + NO_CHANGE_LIMIT
    return result.judgement.verdict != "inconclusive"


@contextmanager
def warm_up(
    before: Action, after: Action, *, warmup: int, device: torch.device, seed: int = 0, is_before_warm: bool = False
) -> Iterator[Pairs]:
    """Runs both actions `warmup` times untimed, in turn. In the block both are warm.

    The threads of a step wait for each other, so one thread that waits for a core delays all. If other programs keep
    the cores busy, the block runs with one thread, provided that steps then stay on one core.

    Args:
        before: The first action.
        after: The second action.
        warmup: How many untimed runs.
        device: The device of the actions.
        seed: The seed of the order within pairs.
        is_before_warm: Whether the first action needs no untimed run.

    Yields:
        Pairs of the two actions. They contain the pairs that showed that steps stay on one core, if any.
    """
    series = Pairs(before, after, device, seed)
    start, waiting = time.perf_counter(), seconds_in_queue()
    series.warm(warmup, (after,) if is_before_warm else (before, after))
    waiting_share = (seconds_in_queue() - waiting) / (time.perf_counter() - start)
    threads = torch.get_num_threads()
    try:
        if device.type == "cpu" and threads > 1 and waiting_share > CROWDED_SHARE:
            torch.set_num_threads(1)
            series.warm(warmup, (before, after))
            if not _stays_on_one_core(series):
                torch.set_num_threads(threads)
                series.forget_runs()
        yield series
    finally:
        torch.set_num_threads(threads)


def _stays_on_one_core(series: Pairs) -> bool:
    """Whether steps stay on one core, by some pairs. It stops as soon as too many runs do not."""
    for _ in range(_TRIAL):
        series.run(1)
        if any(_TRIAL - sum(not r.kept_core for r in runs) < ONE_CORE_SHARE * _TRIAL for runs in series.runs):
            return False
    return bool(series.timings().before_core)
