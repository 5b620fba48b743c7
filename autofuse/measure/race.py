"""Times any number of actions against each other: rounds in random order, until the time is used up.

Where other programs want the cores, runs are compared by the time for which they had a core (timing.py says when that
is known). Knows clocks, devices and numbers; must not know what the actions compute.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from autofuse.measure.statistics import LEVEL, control
from autofuse.measure.timing import (
    ALONE,
    CROWDED,
    Action,
    TimedRun,
    run,
    seconds_of,
    synchronize,
    without_garbage_collection,
)
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.medians import percentile_interval

FEWEST, MOST = 8, 100  # rounds
# After the first rounds an action is let go whose best took this many times as long as the worst of another.
HOPELESS = 1.5
_FIRST = 3
_SAMPLE = 1e-3  # seconds: on an accelerator that many calls are queued that a sample takes about so long
RESAMPLES = 400

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Race:
    """Seconds a call, by action, in order of the rounds, and of the control, which repeats the first action.

    The i-th of all that have an i-th ran in the same round; an action that was let go early has fewer. `runs` are by
    both clocks, those of the control last; where they are known, the samples follow from them.
    """

    samples: Samples
    control: Sequence[float]
    runs: tuple[Mapping[str, Sequence[TimedRun]], Sequence[TimedRun]] = field(default=({}, ()), repr=False)

    @property
    def noise(self) -> Estimate:
        """The ratio of identical runs with its interval: what this machine, now, makes of no difference at all."""
        first = next(iter(self.samples.values()))
        mixed = [t for pair in zip(first, self.control, strict=False) for t in pair]
        return control(mixed, resamples=RESAMPLES, typical=typical)

    def followed_by(self, other: Race) -> Race:
        """Both as one: of actions that are in both, the other's samples come after this one's."""
        if self.runs[1] and other.runs[1]:
            runs = {name: (*own, *other.runs[0].get(name, ())) for name, own in self.runs[0].items()}
            return _by_clock(runs, (*self.runs[1], *other.runs[1]))
        samples = {name: (*own, *other.samples.get(name, ())) for name, own in self.samples.items()}
        return Race(samples, (*self.control, *other.control))


def race(actions: Mapping[str, Action], *, seconds: float, seed: int, device: torch.device) -> Race:
    """Run every action once a round, in random order, for `seconds` each (8 rounds at least, 100 at most).

    All have to be warm. An action that is plainly slower is let go after three rounds. The first action runs twice a
    round: what its two lists differ by is this machine's noise.
    The garbage collector rests meanwhile; the number of threads stays as the caller set it.
    Raises ValueError where there is no action.
    """
    if not actions:
        raise ValueError("There is nothing to time: pass one action or more.")
    order = random.Random(seed)
    first = next(iter(actions))
    runners: list[_Runner] = [_Runner(action, device) for action in actions.values()]
    control = _Runner(actions[first], device)
    with without_garbage_collection():
        going = [*runners, control]
        until = time.perf_counter() + seconds * len(going)
        for done in range(MOST):
            if done >= FEWEST and (time.perf_counter() > until or _is_decided(runners, control)):
                break
            for runner in order.sample(going, len(going)):
                runner.run()
            if done + 1 == _FIRST:
                best = min(max(r.seconds) for r in going)
                let_go = [r for r in runners[1:] if min(r.seconds) > HOPELESS * best]
                until -= seconds * len(let_go)
                going = [r for r in going if r not in let_go]
    if device.type == "cpu":
        return _by_clock({n: tuple(r.runs) for n, r in zip(actions, runners, strict=True)}, tuple(control.runs))
    return Race({name: tuple(r.seconds) for name, r in zip(actions, runners, strict=True)}, tuple(control.seconds))


def _is_decided(runners: Sequence[_Runner], control: _Runner) -> bool:
    """Whether no run of another action took as long as any run of the first, which ran twice a round.

    Of 8 runs and 16 that differ in nothing, one in C(24, 8) = 735471 orders is such a one.
    """
    first = [*runners[0].seconds, *control.seconds]
    least, most = min(first), max(first)
    others = [r.seconds for r in runners[1:]]
    return bool(others) and all(min(own) > most or max(own) < least for own in others)


def _by_clock(runs: Mapping[str, Sequence[TimedRun]], control: Sequence[TimedRun]) -> Race:
    """The race by the clock that says more: the core's, where every run kept to one and had to wait for it."""
    every = [*runs.values(), control]
    alone = all(sum(r.alone for r in own) >= ALONE * len(own) for own in every)
    seconds, core = (sum(getattr(r, name) for own in every for r in own) for name in ("seconds", "core"))
    clock = "core" if alone and core < (1 - CROWDED) * seconds else "seconds"
    samples = {name: tuple(getattr(r, clock) for r in own) for name, own in runs.items()}
    return Race(samples, tuple(getattr(r, clock) for r in control), (runs, control))


class _Runner:
    """One action with its samples. `calls` is how many of them make up a sample. `runs`: on a CPU, by both clocks."""

    def __init__(self, action: Action, device: torch.device) -> None:
        self.action, self.device = action, device
        self.calls = 1 if device.type == "cpu" else _calls(action, device)
        self.seconds: list[float] = []
        self.runs: list[TimedRun] = []

    def run(self) -> None:
        if self.device.type == "cpu":
            self.runs.append(run(self.action, self.device))
            self.seconds.append(self.runs[-1].seconds)
            return
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.calls):
            self.action()
        synchronize(self.device)
        self.seconds.append((time.perf_counter() - start) / self.calls)


def _calls(action: Action, device: torch.device) -> int:
    """How many calls to queue: a model does not wait for the device after each, so a sample should not either."""
    return max(1, min(100, math.ceil(_SAMPLE / seconds_of(action, device))))


def typical(times: Sequence[float]) -> float:
    """The lower quartile: a quarter of the runs took no longer. Raises ValueError where there are no times.

    What disturbs a run only makes it longer. On a machine that others use, half of all runs may be disturbed: their
    median jumps between two values where the lower quartile stays.
    """
    if not times:
        raise ValueError("Nothing is typical of no times.")
    return sorted(times)[(len(times) - 1) // 4]


def typical_interval(times: Sequence[float], *, seed: int = 0) -> Interval:
    """The 95 % percentile bootstrap interval of `typical`. Raises ValueError where there are no times."""
    draws = random.Random(seed)
    found = [typical(draws.choices(times, k=len(times))) for _ in range(RESAMPLES)] if times else []
    if not found:
        raise ValueError("Nothing is typical of no times.")
    return percentile_interval(found, LEVEL)
