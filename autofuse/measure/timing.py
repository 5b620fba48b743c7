"""Times two actions in interleaved pairs of random order.

Each run is timed by two clocks: wall-clock time, and the time for which the run had a core. If other programs keep the
cores busy, a step waits for a core again and again, for a few milliseconds. Its wall-clock time then depends more on
those programs than on the step.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

Action = Callable[[], object]


CROWDED_SHARE = 0.1  # if steps wait for a core for more than this share of their time, the core's clock is used
ONE_CORE_SHARE = 0.8  # the core's clock is used only if at least this share of runs stayed on one core
# The process may use this much more time than the thread, because the clocks are not read at the same moment.
_TOLERANCE, _TOLERANCE_SECONDS = 1.05, 1e-4


@dataclass(frozen=True)
class Timings:
    """The seconds of every timed run, in order.

    Attributes:
        before: Wall-clock seconds of the first action. `before[i]` and `after[i]` ran one after the other.
        after: Wall-clock seconds of the second action.
        before_core: The seconds for which each run of the first action had a core. Empty unless runs stay on one core
            and never give it up by themselves. Then the rest of their time is waiting for a core.
        after_core: The same for the second action.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    before_core: tuple[float, ...] = ()
    after_core: tuple[float, ...] = ()

    @property
    def waiting(self) -> float | None:
        """The share of the runs' time that they waited for a core; None if that is unknown."""
        if not self.before_core:
            return None
        return max(0.0, 1 - sum(self.before_core + self.after_core) / sum(self.before + self.after))


@dataclass(frozen=True)
class TimedRun:
    """One run by both clocks.

    Attributes:
        seconds: Wall-clock seconds.
        core: Seconds for which the thread had a core.
        kept_core: Whether no other thread of the process ran, and this thread never waited for anything but a core.
    """

    seconds: float
    core: float
    kept_core: bool


@dataclass
class Pairs:
    """Two actions that run in pairs. In each pair chance decides which of the two runs first."""

    before: Action
    after: Action
    device: torch.device
    seed: int
    runs: tuple[list[TimedRun], list[TimedRun]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self._order = random.Random(self.seed)

    def warm(self, times: int, actions: Sequence[Action] = ()) -> None:
        """Runs both actions, or only the given ones, `times` times untimed, in turn."""
        for _ in range(times):
            for action in actions or (self.before, self.after):
                seconds_of(action, self.device)

    def forget_runs(self) -> None:
        """Drops all timed runs."""
        for runs in self.runs:
            runs.clear()

    def run(self, pairs: int, done: Callable[[], None] = lambda: None) -> None:
        """Times `pairs` more pairs. `done` is called after each pair, outside of the timed parts."""
        both = ((self.before, self.runs[0]), (self.after, self.runs[1]))
        for _ in range(pairs):
            for action, runs in self._order.sample(both, 2):
                runs.append(time_run(action, self.device))
            done()

    def timings(self) -> Timings:
        """Returns the timings of all pairs so far."""
        before, after = (tuple(r.seconds for r in runs) for runs in self.runs)
        if any(sum(r.kept_core for r in runs) < ONE_CORE_SHARE * len(runs) for runs in self.runs):
            return Timings(before, after)
        return Timings(before, after, *(tuple(r.core for r in runs) for runs in self.runs))


def time_interleaved(
    before: Action,
    after: Action,
    *,
    pairs: int,
    warmup: int,
    seed: int,
    device: torch.device,
    done: Callable[[], None] = lambda: None,
) -> Timings:
    """Times two actions in pairs. In each pair chance decides which of the two runs first.

    Interleaving matters: on a shared machine, timing all runs of one variant before the other showed false differences
    in half of all measurements. Pairs in random order did in 0 to 3 of a hundred. The garbage collector is off.

    Args:
        before: The first action.
        after: The second action.
        pairs: How many pairs to time.
        warmup: How many times both run untimed first, in turn.
        seed: The seed of the random order.
        device: The device of the actions.
        done: A function that is called after every pair, outside of the timed parts.

    Raises:
        ValueError: `pairs` < 1 or `warmup` < 0.
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


def time_run(action: Action, device: torch.device) -> TimedRun:
    """Times one run by both clocks, from an idle device to an idle device. The core's clock counts only on a CPU."""
    switches, process, thread = _count_voluntary_switches(), time.process_time(), time.thread_time()
    seconds = seconds_of(action, device)
    thread, process = time.thread_time() - thread, time.process_time() - process
    kept_core = device.type == "cpu" and switches is not None and switches == _count_voluntary_switches()
    return TimedRun(seconds, thread, kept_core and thread > 0 and process <= _TOLERANCE * thread + _TOLERANCE_SECONDS)


def _count_voluntary_switches() -> int | None:
    """Returns how often this thread gave up its core by itself, to sleep or to wait; None if that is unknown."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return None if who is None else resource.getrusage(who).ru_nvcsw


def seconds_of(action: Action, device: torch.device) -> float:
    """Returns the wall-clock seconds of one run, from an idle device to an idle device.

    The host's clock is used on every device. It includes the time to launch kernels, which events on a stream do not.
    """
    synchronize(device)
    start = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Waits until `device` has finished all its work. Does nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collects garbage once, then turns the collector off for the block.

    Does nothing if the collector is already off, because a collection takes 50 ms in a process with torch.
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
