"""Times whole steps against each other for a few seconds, until it is clear which is faster."""

from __future__ import annotations

import time

import torch

from autofuse.measure.pair_count import JudgedTimings, judge_timings, warm_up
from autofuse.measure.statistics import FEWEST_PAIRS
from autofuse.measure.timing import Action, Pairs, seconds_of, without_garbage_collection

PAIR_COUNTS = (FEWEST_PAIRS, 14, 22, 32, 46, 64)  # the verdict is checked after each of these numbers of pairs
TIME_LIMIT = 3.0  # seconds; afterwards an inconclusive verdict is final
SLOWER_FACTOR = 3.0  # times the limit, if the second step looks slower and the verdict is inconclusive
SLOWER_RATIO = 0.99  # a lower ratio counts as slower, unless the verdict says that the step is faster


def longest_step(seconds: float = 40.0) -> float:
    """Returns the longest step, in seconds, for which the minimum of pairs and their warm-up fit into `seconds`."""
    return seconds / (2 * (FEWEST_PAIRS + 1))


def time_steps(before: Action, after: Action, device: torch.device, seed: int = 0) -> JudgedTimings:
    """Times `before` against `after` in 8 to 64 interleaved pairs.

    It ends when the verdict is clear, or after `TIME_LIMIT` seconds (`SLOWER_FACTOR` times as long if `after` looks
    slower). If other programs keep the cores busy, the comparison uses the time for which steps had a core.
    """
    with warm_up(before, after, warmup=1, device=device), without_garbage_collection():
        series, start = Pairs(before, after, device, seed), time.perf_counter()
        result: JudgedTimings | None = None
        for count in PAIR_COUNTS:
            while len(series.runs[0]) < count:
                series.run(1)
                elapsed = time.perf_counter() - start
                if result is not None and elapsed > TIME_LIMIT * (SLOWER_FACTOR if result.effect.ratio < 1 else 1):
                    return judge_timings(series.timings(), seed)
            result = judge_timings(series.timings(), seed)
            if result.judgement.verdict != "inconclusive":
                return result
    assert result is not None, "PAIR_COUNTS is not empty"
    return result


def is_slower(judged: JudgedTimings) -> bool:
    """Whether the second of two steps is slower: beyond the noise, or by over 1 % if the verdict is inconclusive."""
    return judged.judgement.verdict != "confirmed" and judged.effect.ratio < SLOWER_RATIO


def estimate_seconds(action: Action, device: torch.device) -> float:
    """Returns the approximate seconds of a warm run: the fastest of three, after one run to warm up."""
    seconds_of(action, device)
    return min(seconds_of(action, device) for _ in range(3))
