"""How many pairs to time, by which clock to compare them, and what they amount to. Knows times and threads, no models.

Pairs are timed until the verdict is clear: it is asked for after 30, 60, 100, 150 and 200 pairs, each time so strictly
(statistics.SURE) that five looks together call identical variants different in at most 1 of 2,000 comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from autofuse.measure.statistics import Judgement, judge, paired, paired_control
from autofuse.measure.timing import CROWDED, Action, Pairs, Timings, without_garbage_collection
from autofuse.results.comparison import Estimate

LOOKS = (30, 60, 100, 150, 200)
PATIENCE = 45.0  # seconds after which no further pairs are begun, once there are as many as for the first look
# Nothing changed for certain, and nobody needs it more certain: the interval lies this close to 1.
CLOSE = 0.06
_TRIAL = 5  # pairs that tell whether steps keep to one core

Clock = Literal["wall", "core"]


@dataclass(frozen=True)
class Decided:
    """What the pairs amount to. clock: which times were compared. threads: torch's, while they were taken."""

    timings: Timings
    clock: Clock
    effect: Estimate
    control: Estimate
    judgement: Judgement
    threads: int


def decided(
    before: Action, after: Action, *,
    pairs: int | None, seed: int, device: torch.device, done: Callable[[], None] = lambda: None,
) -> Decided:  # fmt: skip
    """Time `pairs` pairs, or without a number as many as it takes, and judge them. Both actions have to be warm."""
    with without_garbage_collection():
        return _decided(Pairs(before, after, device, seed), LOOKS if pairs is None else (pairs,), seed, done)


def judged(timings: Timings, seed: int) -> Decided:
    """The verdict on these pairs, by the core's clock where other programs wanted the cores."""
    crowded = (timings.waiting or 0.0) > CROWDED
    before, after = (timings.before_core, timings.after_core) if crowded else (timings.before, timings.after)
    found, identical = paired(before, after), paired_control(before, seed=seed)
    judgement = judge(found.estimate, identical, len(before), found.sure)
    return Decided(
        timings, "core" if crowded else "wall", found.estimate, identical, judgement, torch.get_num_threads()
    )


def _decided(series: Pairs, looks: Sequence[int], seed: int, done: Callable[[], None]) -> Decided:
    began = time.perf_counter()
    for look in looks:
        while len(series.runs[0]) < look:
            if len(series.runs[0]) >= looks[0] and time.perf_counter() - began > PATIENCE:
                return judged(series.timings(), seed)
            series.run(1, done)
        result = judged(series.timings(), seed)
        if _clear(result):
            return result
    return result


def _clear(result: Decided) -> bool:
    if result.judgement.verdict == "no-change":
        low, high = result.effect.interval
        return max(high, 1 / low) <= 1 + CLOSE
    return result.judgement.verdict != "inconclusive"


@contextmanager
def warmed(before: Action, after: Action, *, warmup: int, device: torch.device) -> Iterator[None]:
    """Run both `warmup` times untimed, alternating; in the block both are warm.

    Steps on several of a CPU's cores wait for each other, so one that waits for a core holds up all: where other
    programs are seen to want the cores, the block runs with one thread, if steps then keep to one core.
    """
    series = Pairs(before, after, device, seed=0)
    start, waiting = time.perf_counter(), _queued()
    series.warm(warmup)
    waited = (_queued() - waiting) / (time.perf_counter() - start)
    threads = torch.get_num_threads()
    try:
        if device.type == "cpu" and threads > 1 and waited > CROWDED:
            torch.set_num_threads(1)
            series.warm(warmup)
            series.run(_TRIAL)
            if not series.timings().before_core:
                torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(threads)


def _queued() -> float:
    """Seconds that this thread has waited for a core until now; 0 where the system does not tell (Linux does)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
