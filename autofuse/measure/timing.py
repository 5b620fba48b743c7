"""Times two actions in interleaved pairs of random order. It knows clocks and devices, not models or statistics."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Action = Callable[[], object]


@dataclass(frozen=True)
class Timings:
    """Seconds of every timed run, in order; the i-th of both ran next to each other."""

    before: tuple[float, ...]
    after: tuple[float, ...]


def interleaved(
    before: Action,
    after: Action,
    *,
    pairs: int,
    warmup: int,
    seed: int,
    device: torch.device,
    done: Callable[[], None] = lambda: None,
) -> Timings:
    """Run both `pairs` times, next to each other, and let chance decide in each pair which of the two goes first.

    Measuring one variant after the other on a machine that others use gave false differences in half of all runs;
    pairs in random order gave them in 0 to 3 of a hundred. Both run `warmup` times untimed first, alternating.
    The garbage collector rests meanwhile; the number of threads stays as the caller set it. `done` is called after
    every pair, outside the timed parts. Raises ValueError where `pairs` < 1 or `warmup` < 0.
    """
    if pairs < 1 or warmup < 0:
        raise ValueError(
            f"Timing needs at least one pair and a warmup of 0 or more; got {pairs} pairs, warmup {warmup}."
        )
    order = random.Random(seed)
    both: tuple[tuple[Action, list[float]], ...] = ((before, []), (after, []))
    with without_garbage_collection():
        for _ in range(warmup):
            for action, _ in both:
                seconds_of(action, device)
        for _ in range(pairs):
            for action, times in order.sample(both, 2):
                times.append(seconds_of(action, device))
            done()
    return Timings(tuple(both[0][1]), tuple(both[1][1]))


def seconds_of(action: Action, device: torch.device) -> float:
    """Wall-clock seconds of one run, from an idle device to an idle device.

    The clock is the host's on every device: what the user waits for includes launching the kernels, which events
    on the device's own stream leave out.
    """
    synchronize(device)
    start = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all its work; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect once, then keep the collector from running in the block; afterwards it is as it was."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
