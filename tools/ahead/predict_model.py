"""Predicts the time of one launch on a GPU from its bytes, instructions and requests in flight.

There are three lower bounds of the time of a launch, and a fixed part:
- memory: its bytes divided by the bandwidth of a copy. A second read counts if the last cache cannot hold the data.
- latency: by Little's law, from the blocks on a multiprocessor at a time and the lifetime of each. A block lives for
  its successive accesses to memory and the issue of its instructions among those of other blocks.
- instructions: four are issued in a cycle on each multiprocessor.
- fixed: start, ramp and tail of a launch; or the time of Python, if that is longer than the time of the GPU.
Nothing here was measured. Results are predictions, and are labelled so everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tools.ahead.predict_gpus import FIXED, Gpu

ISSUED = 4  # instructions per cycle and multiprocessor
# Limits of similar size add up, because they do not always overlap. The exponent is chosen, not derived: with 4, two
# equal limits take 1.19 times as long as one.
_EXPONENT = 4.0


@dataclass(frozen=True)
class Work:
    """One launch.

    Attributes:
        moved: the bytes that it reads and writes, each once.
        again: the bytes that it reads a second time.
        programs: the number of blocks.
        resident: the number of blocks that a multiprocessor holds at once.
        instructions: the instructions of all warps of a block.
        trips: the successive accesses of a block to memory.
    """

    moved: float
    again: float
    programs: int
    resident: int
    instructions: float
    trips: float


@dataclass(frozen=True)
class Predicted:
    """seconds: of the launch. limit: what it is bound by. share: of the speed of a copy of as many bytes."""

    seconds: float
    limit: str
    share: float
    parts: dict[str, float]


def predicted(work: Work, gpu: Gpu, python: float = 0.0) -> Predicted:
    """Predict the time of a launch. `python` is Python's time for it in seconds, while the GPU idles."""
    parts = {
        "memory": (work.moved + _missed_bytes(work, gpu)) / gpu.copy,
        "latency": _latency(work, gpu),
        "instructions": work.instructions * work.programs / (gpu.multiprocessors * ISSUED * gpu.clock),
    }
    at_work = math.fsum(t**_EXPONENT for t in parts.values()) ** (1 / _EXPONENT)
    seconds = max(FIXED + at_work, python)
    limit = "launch" if seconds == python or at_work < FIXED else max(parts, key=parts.__getitem__)
    return Predicted(seconds, limit, (FIXED + work.moved / gpu.copy) / seconds, parts)


def _missed_bytes(work: Work, gpu: Gpu) -> float:
    """The bytes that a second read loads from memory: those of active blocks that do not fit into the last cache."""
    if not work.again:
        return 0.0
    at_once = min(work.programs, gpu.multiprocessors * work.resident)
    span = work.again / work.programs * at_once
    return work.again * max(0.0, 1.0 - gpu.cache / span)


def _latency(work: Work, gpu: Gpu) -> float:
    """The number of waves of blocks times the lifetime of a block."""
    if not work.resident:
        return math.inf
    slots = gpu.multiprocessors * work.resident
    beside = min(work.resident, math.ceil(work.programs / gpu.multiprocessors))
    life = (work.trips * gpu.latency + work.instructions * beside / ISSUED) / gpu.clock
    return max(work.programs / slots, 1.0) * life
