"""Times two actions in interleaved pairs of random order. It knows clocks and devices, not models or statistics.

Two clocks run at a time: the wall's, and that of the core. Where other programs want the cores too, a step waits for
one again and again, a few milliseconds each time, and its wall-clock time says more about them than about the step.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

Action = Callable[[], object]


CROWDED = 0.1  # the share of its time that a step waits for a core, from which on the core's clock is used
ALONE = 0.8  # the share of runs that must have kept to one core for the core's clock to speak for all
# The process may take this much more than the thread: the two clocks are not read in the same moment.
_MOSTLY, _MOMENT = 1.05, 1e-4


@dataclass(frozen=True)
class Timings:
    """Seconds of every timed run, in order; the i-th of both ran next to each other.

    before_core, after_core: for how much of it the run had a core, where a step needs one core and never gives it up
    by itself, so that all the rest is waiting for it; empty where that cannot be said.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    before_core: tuple[float, ...] = ()
    after_core: tuple[float, ...] = ()

    @property
    def waiting(self) -> float | None:
        """The share of their time for which the runs waited for a core; None where that is not known."""
        if not self.before_core:
            return None
        return max(0.0, 1 - sum(self.before_core + self.after_core) / sum(self.before + self.after))


@dataclass(frozen=True)
class TimedRun:
    """Seconds by the clock on the wall, and of the thread that ran. alone: no other thread of the process did, and this
    one never waited for anything but a core."""

    seconds: float
    core: float
    alone: bool


@dataclass
class Pairs:
    """Two actions that are run in pairs, as many as asked for; chance decides in each which of the two goes first."""

    before: Action
    after: Action
    device: torch.device
    seed: int
    runs: tuple[list[TimedRun], list[TimedRun]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self._order = random.Random(self.seed)

    def warm(self, times: int) -> None:
        """Run both so many times untimed, alternating."""
        for _ in range(times):
            for action in (self.before, self.after):
                seconds_of(action, self.device)

    def run(self, pairs: int, done: Callable[[], None] = lambda: None) -> None:
        """Time so many further pairs. `done` is called after each, outside the timed parts."""
        both = ((self.before, self.runs[0]), (self.after, self.runs[1]))
        for _ in range(pairs):
            for action, runs in self._order.sample(both, 2):
                runs.append(run(action, self.device))
            done()

    def timings(self) -> Timings:
        """Of all pairs until now."""
        before, after = (tuple(r.seconds for r in runs) for runs in self.runs)
        if any(sum(r.alone for r in runs) < ALONE * len(runs) for runs in self.runs):
            return Timings(before, after)
        return Timings(before, after, *(tuple(r.core for r in runs) for runs in self.runs))


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
    series = Pairs(before, after, device, seed)
    with without_garbage_collection():
        series.warm(warmup)
        series.run(pairs, done)
    return series.timings()


def run(action: Action, device: torch.device) -> TimedRun:
    """One run by both clocks, from an idle device to an idle device. On a device of its own the core's says nothing."""
    gave_up, process, thread = _gave_up(), time.process_time(), time.thread_time()
    seconds = seconds_of(action, device)
    thread, process = time.thread_time() - thread, time.process_time() - process
    stayed = device.type == "cpu" and gave_up is not None and gave_up == _gave_up()
    return TimedRun(seconds, thread, stayed and thread > 0 and process <= _MOSTLY * thread + _MOMENT)


def _gave_up() -> int | None:
    """How often this thread gave up its core by itself, to sleep or to wait; None where the system does not tell."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return None if who is None else resource.getrusage(who).ru_nvcsw


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
    """Collect once, then keep the collector from running in the block; afterwards it is as it was.

    In a block where it rests already, nothing happens: collecting takes 50 ms in a process of torch's size.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
