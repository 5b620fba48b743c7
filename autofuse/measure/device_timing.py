"""Times actions on a GPU by the GPU's clock and a cold cache, and separately the host's time to launch them.

Events on the stream do not include the host's time. Before each timed call a buffer is written, for two reasons:

- The buffer is larger than the second-level cache, so the call does not find its operands there. In a model the cache
  holds the result of the previous layer.
- The writes take longer than the host needs to launch the call, so the GPU does not wait for the host.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from autofuse.measure.race import MAX_ROUNDS, MIN_ROUNDS, Race
from autofuse.measure.timing import Action, seconds_of, synchronize, without_garbage_collection

_BUFFER = 2**28  # bytes; the largest second-level cache, of a B200, has 126 MiB
_FASTEST = 8e12  # bytes a second: the highest memory bandwidth of any GPU
_MOST_WRITES = 200


class DeviceClock(Protocol):
    """The clocks of one call: seconds of the device, and of the host that launches it."""

    def device_seconds(self, action: Action, host: float) -> float:
        """Returns the seconds of one call on the device. `host`: the seconds that the host needs to launch it."""

    def host_seconds(self, action: Action) -> float:
        """Returns the seconds that the host needs to launch a call."""


class CudaClock:
    """The clock of a CUDA device, by events on its current stream.

    Raises:
        RuntimeError: There is no CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(_BUFFER, dtype=torch.int8, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def device_seconds(self, action: Action, host: float) -> float:
        """Returns the seconds of an action on the GPU. Writes before it keep the GPU busy for the launch (`host`)."""
        for _ in range(count_writes(host)):
            self._buffer.zero_()
        self._start.record()
        action()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def host_seconds(self, action: Action) -> float:
        """Returns the seconds until the action is launched, on a GPU that has nothing else to do."""
        synchronize(self._device)
        start = time.perf_counter()
        action()
        seconds = time.perf_counter() - start
        synchronize(self._device)
        return seconds


def busy_share(action: Action, device: torch.device) -> float | None:
    """Returns the part of an action's time in which a kernel runs on the GPU, 0 to 1; None if kernels are not reported.

    Args:
        action: The action. It runs a few times.
        device: A CUDA device.
    """
    action()
    seconds = min(seconds_of(action, device) for _ in range(2))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        action()
        synchronize(device)
    events = (e for e in profiler.events() or () if e.device_type.name == "CUDA")
    busy = covered_microseconds([(e.time_range.start, e.time_range.end) for e in events])
    return min(busy * 1e-6 / seconds, 1.0) if busy else None


def covered_microseconds(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the length of the union of spans (start, end)."""
    total, covered_until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(end - max(start, covered_until), 0.0)
        covered_until = max(covered_until, end)
    return total


def count_writes(host: float) -> int:
    """Returns how many writes keep the device busy while the host launches a call in `host` seconds."""
    return max(1, min(_MOST_WRITES, math.ceil(1.5 * host * _FASTEST / _BUFFER)))


def race_on_device(
    actions: Mapping[str, Action], *, seconds: float, seed: int, clock: DeviceClock,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[Race, dict[str, float]]:  # fmt: skip
    """Runs rounds of all actions in random order, like `race`, but by the device's clock.

    The first action runs twice in each round, as a control. There are 8 to 100 rounds.

    Args:
        actions: The actions by name. They must be warm.
        seconds: The seconds to spend on each action.
        seed: The seed of the random order.
        clock: The clock of the device.
        now: The host's clock, which ends the rounds.

    Returns:
        The race in seconds of the device, and the host's seconds to launch each action.

    Raises:
        ValueError: There is no action.
    """
    if not actions:
        raise ValueError("There is nothing to time: pass one action or more.")
    order, first = random.Random(seed), next(iter(actions))
    with without_garbage_collection():
        host = {name: min(clock.host_seconds(action) for _ in range(MIN_ROUNDS)) for name, action in actions.items()}
        samples: dict[str, list[float]] = {name: [] for name in actions}
        control: list[float] = []
        runners = [(first, control), *samples.items()]
        end = now() + seconds * len(runners)
        for rounds_done in range(MAX_ROUNDS):
            if rounds_done >= MIN_ROUNDS and now() > end:
                break
            for name, times in order.sample(runners, len(runners)):
                times.append(clock.device_seconds(actions[name], host[name]))
    return Race({name: tuple(times) for name, times in samples.items()}, tuple(control)), host
