"""Times whole steps against each other for a few seconds, until it is clear which is faster."""

from __future__ import annotations

import time

import torch

from autofuse.measure.pair_count import JudgedTimings, judge_early, judge_timings, warm_up
from autofuse.measure.statistics import FEWEST_PAIRS
from autofuse.measure.timing import Action, seconds_of, without_garbage_collection

PAIR_COUNTS = (FEWEST_PAIRS, 14, 22, 32, 46, 64)  # the verdict is checked after each of these numbers of pairs
TIME_LIMIT = 3.0  # seconds; afterwards an inconclusive verdict is final
SLOWER_FACTOR = 3.0  # times the limit, if the second step looks slower and the verdict is inconclusive
EARLY_SECONDS = 0.5  # from then on, pairs that are far apart decide before the first check
ONE_RUN_SUFFICES = 0.05  # seconds; the first run of a longer step is an estimate
SLOWER_RATIO = 0.99  # a lower ratio counts as slower, unless the verdict says that the step is faster


def longest_step(seconds: float = 40.0) -> float:
    """Returns the longest step, in seconds, for which the minimum of pairs and their warm-up fit into `seconds`."""
    return seconds / (2 * (FEWEST_PAIRS + 1))


def time_steps(
    before: Action, after: Action, device: torch.device, seed: int = 0, is_before_warm: bool = False
) -> JudgedTimings:
    """Times `before` against `after` in 8 to 64 interleaved pairs, or in 5 to 7 if steps are long and far apart.

    It ends when the verdict is clear, or after `TIME_LIMIT` seconds (`SLOWER_FACTOR` times as long if `after` looks
    slower). If other programs keep the cores busy, the comparison uses the time for which steps had a core.

    Args:
        before: The original step.
        after: The other step.
        device: The device of the steps.
        seed: The seed of the order within pairs.
        is_before_warm: Whether `before` needs no untimed run.
    """
    with (
        without_garbage_collection(),
        warm_up(before, after, warmup=1, device=device, seed=seed, is_before_warm=is_before_warm) as series,
    ):
        start = time.perf_counter()
        result: JudgedTimings | None = None
        for count in PAIR_COUNTS:
            while len(series.runs[0]) < count:
                series.run(1)
                elapsed = time.perf_counter() - start
                if result is None and elapsed > EARLY_SECONDS and (early := judge_early(series.timings(), seed)):
                    return early
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
    """Returns the approximate seconds of a run: one run, or, if it is short, the fastest of three after it."""
    first = seconds_of(action, device)
    return first if first > ONE_RUN_SUFFICES else min(seconds_of(action, device) for _ in range(3))
