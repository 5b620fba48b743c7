"""Times whole steps against each other until it is clear which is faster, within the patience of someone who waits.

Knows clocks and verdicts; must not know what the steps compute.
"""

from __future__ import annotations

import time

import torch

from autofuse.measure.pair_count import Decided, judged, warmed
from autofuse.measure.statistics import FEWEST_PAIRS
from autofuse.measure.timing import Action, Pairs, seconds_of, without_garbage_collection

LOOKS = (FEWEST_PAIRS, 14, 22, 32, 46, 64)  # pairs after which the verdict is asked for
PATIENCE = 3.0  # seconds of pairs after which an open verdict stays open
LONGER = 3.0  # times as long, where the second looks slower and it is not clear
EVEN = 0.99  # a ratio below that counts as slower where it is not plain that the step is faster


def longest_step(seconds: float = 40.0) -> float:
    """The longest step, in seconds, of which the fewest pairs and their warm-up take at most `seconds`."""
    return seconds / (2 * (FEWEST_PAIRS + 1))


def timed_steps(before: Action, after: Action, device: torch.device, seed: int = 0) -> Decided:
    """Time `before` against `after` in interleaved pairs: 8 at least, 64 at most.

    It ends when the verdict is clear, or when `PATIENCE` is over (`LONGER` times as much where `after` looks slower).
    Where other programs want the cores, the times are those for which the steps had a core (see pair_count.py).
    """
    with warmed(before, after, warmup=1, device=device), without_garbage_collection():
        series, began = Pairs(before, after, device, seed), time.perf_counter()
        result: Decided | None = None
        for look in LOOKS:
            while len(series.runs[0]) < look:
                series.run(1)
                taken = time.perf_counter() - began
                if result is not None and taken > PATIENCE * (LONGER if result.effect.ratio < 1 else 1):
                    return judged(series.timings(), seed)
            result = judged(series.timings(), seed)
            if result.judgement.verdict != "inconclusive":
                return result
    assert result is not None, "there is a look"
    return result


def is_slower(found: Decided) -> bool:
    """Whether the second of two steps is slower: beyond the noise, or by over 1 % where the noise leaves it open."""
    return found.judgement.verdict != "confirmed" and found.effect.ratio < EVEN


def roughly(action: Action, device: torch.device) -> float:
    """Roughly the seconds of a warm run: the least of three, after the first."""
    seconds_of(action, device)
    return min(seconds_of(action, device) for _ in range(3))
