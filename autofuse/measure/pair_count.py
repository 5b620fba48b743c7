"""Decides how many pairs to time, and by which clock to compare them.

Pairs are timed until the verdict is clear. It is checked after 30, 60, 100, 150 and 200 pairs. Each check is so strict
(statistics.STRICT_LEVEL) that all five together call identical variants different in at most 1 of 2,000 comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from autofuse.measure.core_queue import seconds_in_queue
from autofuse.measure.statistics import Judgement, identical_runs_ratio, judge, paired_ratio
from autofuse.measure.timing import CROWDED_SHARE, Action, Pairs, Timings, without_garbage_collection
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
    uses_core_clock = (timings.waiting or 0.0) > CROWDED_SHARE
    before, after = (timings.before_core, timings.after_core) if uses_core_clock else (timings.before, timings.after)
    ratio, noise = paired_ratio(before, after), identical_runs_ratio(before, seed=seed)
    judgement = judge(ratio.estimate, noise, len(before), ratio.strict_interval)
    return JudgedTimings(
        timings, "core" if uses_core_clock else "wall", ratio.estimate, noise, judgement, torch.get_num_threads()
    )


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
def warm_up(before: Action, after: Action, *, warmup: int, device: torch.device) -> Iterator[None]:
    """Runs both actions `warmup` times untimed, in turn. In the block both are warm.

    The threads of a step wait for each other, so one thread that waits for a core delays all. If other programs keep
    the cores busy, the block runs with one thread, provided that steps then stay on one core.
    """
    series = Pairs(before, after, device, seed=0)
    start, waiting = time.perf_counter(), seconds_in_queue()
    series.warm(warmup)
    waiting_share = (seconds_in_queue() - waiting) / (time.perf_counter() - start)
    threads = torch.get_num_threads()
    try:
        if device.type == "cpu" and threads > 1 and waiting_share > CROWDED_SHARE:
            torch.set_num_threads(1)
            series.warm(warmup)
            series.run(_TRIAL)
            if not series.timings().before_core:
                torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(threads)
