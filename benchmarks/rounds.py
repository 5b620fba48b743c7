"""Times several ways to do the same thing in interleaved rounds of random order.

docs/measuring.md explains why the order is interleaved and random. The first way runs twice in each round, so that
every run has its own A/A control: the noise of this machine at this time.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from autofuse.measure.statistics import estimate
from autofuse.measure.timing import seconds_of, without_garbage_collection
from autofuse.results.comparison import Estimate

Action = Callable[[], object]
AGAIN = "again"

# By default glibc returns large blocks to the system after each step and faults them in again, in irregular time.
STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


@dataclass(frozen=True)
class Rounds:
    """Seconds of each way in each round. Entries at equal positions ran in the same round."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return median(self.seconds[name])

    def best(self, *without: str) -> str:
        """The way with the smallest median, without some ways."""
        return min((n for n in self.seconds if n not in (*without, AGAIN)), key=self.median)

    def ratio(self, before: str, after: str) -> Estimate:
        """median(before) / median(after), above 1 if `after` is faster, with its 95 % interval."""
        return estimate(self.seconds[before], self.seconds[after])

    def control(self, name: str) -> Estimate:
        """The ratio between the way called `name` and its second run."""
        return estimate(self.seconds[name], self.seconds[AGAIN])


def time_in_rounds(
    ways: Mapping[str, Action], device: torch.device, *, seconds: float, warmup: int = 3, seed: int = 0,
    rounds: tuple[int, int] = (12, 100), least: float = 1e-3,
) -> Rounds:  # fmt: skip
    """Times all ways.

    Args:
        ways: the ways by name. The first one runs twice in each round.
        device: the device to synchronize with.
        seconds: the time for all ways together, within the limits of `rounds`.
        warmup: calls of each way before the first that counts.
        seed: of the random order.
        rounds: the least and the most rounds.
        least: shorter calls, in seconds, are repeated within a timing, equally often for all ways.

    Returns:
        The seconds of each way.
    """
    generator = random.Random(seed)
    first = next(iter(ways))
    actions = {**ways, AGAIN: ways[first]}
    with without_garbage_collection():
        first_times = {name: min(seconds_of(action, device) for _ in range(warmup)) for name, action in actions.items()}
        repeats = max(1, math.ceil(least / min(first_times.values())))
        count = min(rounds[1], max(rounds[0], int(seconds / (repeats * sum(first_times.values())))))
        times: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(count):
            for name in generator.sample(list(actions), len(actions)):
                times[name].append(seconds_of(_repeat(actions[name], repeats), device) / repeats)
    return Rounds({name: tuple(values) for name, values in times.items()})


def _repeat(action: Action, times: int) -> Action:
    def run() -> None:
        for _ in range(times):
            action()

    return run


def forward_and_backward(function: Callable[..., object], tensors: list[Tensor]) -> Action:
    """One call of `function`, and the gradients of all inputs that require one, for fixed output gradients."""
    inputs_with_gradient = [t for t in tensors if t.requires_grad]
    if not inputs_with_gradient:
        return lambda: function(*tensors)
    gradients = [
        torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out) for out in _outputs(function(*tensors))
    ]

    def step() -> None:
        torch.autograd.grad(_outputs(function(*tensors)), inputs_with_gradient, gradients)

    return step


def _outputs(result: object) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)  # type: ignore[return-value]


def with_steady_allocator() -> None:
    """Starts this process again with the allocator's environment variables, which are read before Python starts."""
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER}
        )
