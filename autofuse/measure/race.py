"""Times any number of actions against each other, in rounds of random order, for a given time.

If other programs keep the cores busy, the comparison uses the time for which runs had a core. timing.py says when that
time is known.
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
    CROWDED_SHARE,
    ONE_CORE_SHARE,
    Action,
    TimedRun,
    seconds_of,
    synchronize,
    time_run,
    without_garbage_collection,
)
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.medians import percentile_interval

MIN_ROUNDS, MAX_ROUNDS = 8, 100  # rounds
# An action is dropped after the first rounds if its fastest run is this much slower than the slowest of another.
DROP_RATIO = 1.5
_FIRST_ROUNDS = 3
# Seconds of a sample on an accelerator, which is a queue of calls. In shorter samples the host's time dominates: on an
# H100, samples of 1 ms took 4 times as long for a call of a layer norm.
_SAMPLE_SECONDS = 5e-3
RESAMPLES = 400

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Race:
    """The samples of all actions.

    Attributes:
        samples: For each action: the seconds of a call in each round. An action that was dropped has fewer samples.
        control: The seconds of the control, which runs the first action a second time in each round.
        runs: The runs by both clocks, of the actions and of the control. Empty except on a CPU.
    """

    samples: Samples
    control: Sequence[float]
    runs: tuple[Mapping[str, Sequence[TimedRun]], Sequence[TimedRun]] = field(default=({}, ()), repr=False)

    @property
    def noise(self) -> Estimate:
        """The ratio of identical runs, with its interval: the noise of this machine during the race."""
        first = next(iter(self.samples.values()))
        alternating = [seconds for pair in zip(first, self.control, strict=False) for seconds in pair]
        return control(alternating, resamples=RESAMPLES, typical=typical)

    def followed_by(self, other: Race) -> Race:
        """Returns a race of this race's actions, with the samples of `other` after the samples of this race."""
        if self.runs[1] and other.runs[1]:
            runs = {name: (*own, *other.runs[0].get(name, ())) for name, own in self.runs[0].items()}
            return _race_by_best_clock(runs, (*self.runs[1], *other.runs[1]))
        samples = {name: (*own, *other.samples.get(name, ())) for name, own in self.samples.items()}
        return Race(samples, (*self.control, *other.control))


def race(actions: Mapping[str, Action], *, seconds: float, seed: int, device: torch.device) -> Race:
    """Runs every action once in each round, in random order.

    The first action runs twice in each round: the difference of its two lists is the noise of the machine. An action
    that is clearly slower is dropped after three rounds. There are 8 to 100 rounds. The garbage collector is off.

    Args:
        actions: The actions by name. They must be warm.
        seconds: The seconds to spend on each action.
        seed: The seed of the random order.
        device: The device of the actions.

    Raises:
        ValueError: There is no action.
    """
    if not actions:
        raise ValueError("There is nothing to time: pass one action or more.")
    order = random.Random(seed)
    first = next(iter(actions))
    runners: list[_Runner] = [_Runner(action, device) for action in actions.values()]
    control = _Runner(actions[first], device)
    with without_garbage_collection():
        active = [*runners, control]
        end = time.perf_counter() + seconds * len(active)
        for rounds_done in range(MAX_ROUNDS):
            if rounds_done >= MIN_ROUNDS and (time.perf_counter() > end or _is_clear(runners, control)):
                break
            for runner in order.sample(active, len(active)):
                runner.run()
            if rounds_done + 1 == _FIRST_ROUNDS:
                best = min(max(r.seconds) for r in active)
                dropped = [r for r in runners[1:] if min(r.seconds) > DROP_RATIO * best]
                end -= seconds * len(dropped)
                active = [r for r in active if r not in dropped]
    if device.type == "cpu":
        return _race_by_best_clock(
            {n: tuple(r.runs) for n, r in zip(actions, runners, strict=True)}, tuple(control.runs)
        )
    return Race({name: tuple(r.seconds) for name, r in zip(actions, runners, strict=True)}, tuple(control.seconds))


def _is_clear(runners: Sequence[_Runner], control: _Runner) -> bool:
    """Whether the runs of every other action are all faster, or all slower, than every run of the first action.

    For 8 runs and 16 identical ones, this happens by chance in 1 of C(24, 8) = 735,471 orders.
    """
    first = [*runners[0].seconds, *control.seconds]
    lowest, highest = min(first), max(first)
    other_seconds = [r.seconds for r in runners[1:]]
    return bool(other_seconds) and all(min(seconds) > highest or max(seconds) < lowest for seconds in other_seconds)


def _race_by_best_clock(runs: Mapping[str, Sequence[TimedRun]], control: Sequence[TimedRun]) -> Race:
    """Returns the race by the core's clock if runs stayed on one core and waited for it; else by wall-clock time."""
    all_runs = [*runs.values(), control]
    on_one_core = all(sum(r.kept_core for r in own) >= ONE_CORE_SHARE * len(own) for own in all_runs)
    seconds, core = (sum(getattr(r, name) for own in all_runs for r in own) for name in ("seconds", "core"))
    clock = "core" if on_one_core and core < (1 - CROWDED_SHARE) * seconds else "seconds"
    samples = {name: tuple(getattr(r, clock) for r in own) for name, own in runs.items()}
    return Race(samples, tuple(getattr(r, clock) for r in control), (runs, control))


class _Runner:
    """One action with its samples.

    Attributes:
        calls: How many calls make up a sample.
        seconds: The samples: seconds of one call.
        runs: On a CPU: the runs by both clocks.
    """

    def __init__(self, action: Action, device: torch.device) -> None:
        self.action, self.device = action, device
        self.calls = 1 if device.type == "cpu" else _count_calls(action, device)
        self.seconds: list[float] = []
        self.runs: list[TimedRun] = []

    def run(self) -> None:
        if self.device.type == "cpu":
            self.runs.append(time_run(self.action, self.device))
            self.seconds.append(self.runs[-1].seconds)
            return
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.calls):
            self.action()
        synchronize(self.device)
        self.seconds.append((time.perf_counter() - start) / self.calls)


def _count_calls(action: Action, device: torch.device) -> int:
    """Returns how many calls to queue in a sample. A model does not wait for the device after each call either."""
    return max(1, min(100, math.ceil(_SAMPLE_SECONDS / seconds_of(action, device))))


def typical(times: Sequence[float]) -> float:
    """Returns the lower quartile: a quarter of the runs took no longer.

    A disturbance only makes a run longer. On a shared machine half of all runs may be disturbed. The median then jumps
    between two values, and the lower quartile does not.

    Raises:
        ValueError: `times` is empty.
    """
    if not times:
        raise ValueError("There is no typical time of an empty list: pass one time or more.")
    return sorted(times)[(len(times) - 1) // 4]


def typical_interval(times: Sequence[float], *, seed: int = 0) -> Interval:
    """Returns the 95 % percentile bootstrap interval of `typical`.

    Raises:
        ValueError: `times` is empty.
    """
    draws = random.Random(seed)
    estimates = [typical(draws.choices(times, k=len(times))) for _ in range(RESAMPLES)] if times else []
    if not estimates:
        raise ValueError("There is no typical time of an empty list: pass one time or more.")
    return percentile_interval(estimates, LEVEL)
