"""How long one launch should take on a GPU: bytes, instructions, and what one multiprocessor can have on its way.

Three times that a launch cannot beat, and what it takes beside them:
- memory: its bytes over the bandwidth of a copy. What is read again counts where the last cache cannot have kept it.
- latency: by Little's law, blocks on a multiprocessor at a time and how long each lives. A block lives for its trips to
  memory, one after the other, and the issue of its instructions among the others'.
- instructions: four are issued in a cycle on each multiprocessor.
- fixed: start, ramp and tail of a launch; and where Python takes longer to launch than the GPU to run, that.
Nothing here was measured: what it gives is a prediction, and is called one wherever it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tools.ahead.predict_gpus import FIXED, Gpu

ISSUED = 4  # instructions in a cycle on each multiprocessor
# Limits that are close to each other add up, for one is not always at work when another is: the exponent with which
# they do is chosen, not derived. With 4, two equal limits take 1.19 times as long as one.
_EXPONENT = 4.0


@dataclass(frozen=True)
class Work:
    """One launch.

    moved: bytes that it reads and writes, each once. again: those that it reads once more. programs: blocks. resident:
    how many a multiprocessor holds at once. instructions: that a block's warps execute, summed. trips: to memory, one
    after the other, of a block.
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
    """python: seconds of Python for the launch, where the GPU has nothing else to do meanwhile."""
    parts = {
        "memory": (work.moved + _missed(work, gpu)) / gpu.copy,
        "latency": _latency(work, gpu),
        "instructions": work.instructions * work.programs / (gpu.multiprocessors * ISSUED * gpu.clock),
    }
    at_work = math.fsum(t**_EXPONENT for t in parts.values()) ** (1 / _EXPONENT)
    seconds = max(FIXED + at_work, python)
    limit = "launch" if seconds == python or at_work < FIXED else max(parts, key=parts.__getitem__)
    return Predicted(seconds, limit, (FIXED + work.moved / gpu.copy) / seconds, parts)


def copied(moved: float, gpu: Gpu, launches: int = 1) -> float:
    """Seconds of launches that are bound by memory alone, as a copy is: for figures that others published."""
    return launches * FIXED + moved / gpu.copy


def _missed(work: Work, gpu: Gpu) -> float:
    """Bytes read again that come from memory: those of the blocks at work that do not fit into the last cache."""
    if not work.again:
        return 0.0
    at_once = min(work.programs, gpu.multiprocessors * work.resident)
    span = work.again / work.programs * at_once
    return work.again * max(0.0, 1.0 - gpu.cache / span)


def _latency(work: Work, gpu: Gpu) -> float:
    """Waves of blocks times the life of one."""
    if not work.resident:
        return math.inf
    slots = gpu.multiprocessors * work.resident
    beside = min(work.resident, math.ceil(work.programs / gpu.multiprocessors))
    life = (work.trips * gpu.latency + work.instructions * beside / ISSUED) / gpu.clock
    return max(work.programs / slots, 1.0) * life
