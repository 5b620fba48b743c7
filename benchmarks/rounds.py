"""Times several ways to do the same thing in interleaved rounds of random order. It knows clocks, not what is timed.

Why interleaved and why random: docs/measuring.md. The first way is there twice, so that every run carries its own A/A
control: what this machine, now, makes of no difference.
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

# glibc gives large blocks back to the system and faults them in again at every step, at times that nothing repeats.
STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


@dataclass(frozen=True)
class Rounds:
    """Seconds of each way in each round; the i-th of all ran in the same round."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return median(self.seconds[name])

    def best(self, *without: str) -> str:
        """The way with the least median, some left out."""
        return min((n for n in self.seconds if n not in (*without, AGAIN)), key=self.median)

    def ratio(self, before: str, after: str) -> Estimate:
        """median(before) / median(after), above 1 where `after` is faster, with its 95 % interval."""
        return estimate(self.seconds[before], self.seconds[after])

    def control(self, name: str) -> Estimate:
        """The same between the way called `name` and itself once more."""
        return estimate(self.seconds[name], self.seconds[AGAIN])


def measured(
    ways: Mapping[str, Action], device: torch.device, *, seconds: float, warmup: int = 3, seed: int = 0,
    rounds: tuple[int, int] = (12, 100), least: float = 1e-3,
) -> Rounds:  # fmt: skip
    """Time all ways for about `seconds`, in between `rounds` many rounds. The first way runs twice in each.

    What takes less than `least` seconds is repeated within a timing, equally often for all ways.
    """
    order = random.Random(seed)
    first = next(iter(ways))
    actions = {**ways, AGAIN: ways[first]}
    with without_garbage_collection():
        once = {name: min(seconds_of(action, device) for _ in range(warmup)) for name, action in actions.items()}
        repeats = max(1, math.ceil(least / min(once.values())))
        count = min(rounds[1], max(rounds[0], int(seconds / (repeats * sum(once.values())))))
        times: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(count):
            for name in order.sample(list(actions), len(actions)):
                times[name].append(seconds_of(_repeated(actions[name], repeats), device) / repeats)
    return Rounds({name: tuple(values) for name, values in times.items()})


def _repeated(action: Action, times: int) -> Action:
    def run() -> None:
        for _ in range(times):
            action()

    return run


def forward_and_backward(function: Callable[..., object], tensors: list[Tensor]) -> Action:
    """One call of `function`, and where inputs ask for it the gradients of all of them, for fixed output gradients."""
    wanted = [t for t in tensors if t.requires_grad]
    if not wanted:
        return lambda: function(*tensors)
    gradients = [
        torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out) for out in _outputs(function(*tensors))
    ]

    def step() -> None:
        torch.autograd.grad(_outputs(function(*tensors)), wanted, gradients)

    return step


def _outputs(result: object) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)  # type: ignore[return-value]


def with_steady_allocator() -> None:
    """Start this process again with the allocator's variables set: they are read before Python begins."""
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER}
        )
