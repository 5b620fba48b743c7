"""Times actions on a GPU by the GPU's own clock, with a cold cache, and beside it the host's time to launch them.

Events on the stream leave out what the host takes, and a step that finds its operands in the second-level cache says
nothing about a model, whose layers find there what the layer before left. So before each timed call a buffer larger
than any such cache is written, often enough that the host has launched the whole call before the GPU comes to it.
Knows clocks; must not know what the actions compute.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from autofuse.measure.race import FEWEST, MOST, Race
from autofuse.measure.timing import Action, synchronize, without_garbage_collection

_BUFFER = 2**28  # bytes; the largest second-level cache, of a B200, has 126 MiB
_FASTEST = 8e12  # bytes a second that the buffer is written at, at most
_MOST_WRITES = 200


class DeviceClock(Protocol):
    """What times one call: seconds of the device, and of the host that launches it."""

    def device_seconds(self, action: Action, host: float) -> float:
        """Seconds of the device for one call whose launch takes the host `host` seconds."""

    def host_seconds(self, action: Action) -> float:
        """Seconds of the host until a call has been launched."""


class CudaClock:
    """The clock of a CUDA device, by events on its current stream. Raises RuntimeError where there is none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(_BUFFER, dtype=torch.int8, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def device_seconds(self, action: Action, host: float) -> float:
        for _ in range(writes_for(host)):
            self._buffer.zero_()
        self._start.record()
        action()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def host_seconds(self, action: Action) -> float:
        synchronize(self._device)
        start = time.perf_counter()
        action()
        found = time.perf_counter() - start
        synchronize(self._device)
        return found


def writes_for(host: float) -> int:
    """How often the buffer is written so that the device is busy for as long as the host takes to launch a call."""
    return max(1, min(_MOST_WRITES, math.ceil(1.5 * host * _FASTEST / _BUFFER)))


def device_race(
    actions: Mapping[str, Action], *, seconds: float, seed: int, clock: DeviceClock,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[Race, dict[str, float]]:  # fmt: skip
    """Rounds of all actions in random order, as `race` has them, by the device's clock; and each one's host seconds.

    The first action runs twice a round. Each is run for about `seconds`, 8 rounds at least and 100 at most. All have to
    be warm. Raises ValueError where there is no action.
    """
    if not actions:
        raise ValueError("There is nothing to time: pass one action or more.")
    order, first = random.Random(seed), next(iter(actions))
    with without_garbage_collection():
        host = {name: min(clock.host_seconds(action) for _ in range(FEWEST)) for name, action in actions.items()}
        samples: dict[str, list[float]] = {name: [] for name in actions}
        control: list[float] = []
        going = [(first, control), *samples.items()]
        until = now() + seconds * len(going)
        for done in range(MOST):
            if done >= FEWEST and now() > until:
                break
            for name, found in order.sample(going, len(going)):
                found.append(clock.device_seconds(actions[name], host[name]))
    return Race({name: tuple(found) for name, found in samples.items()}, tuple(control)), host
