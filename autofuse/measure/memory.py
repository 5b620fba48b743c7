"""The most memory that one run of something holds on top of what stood before it. It knows allocators, not models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autofuse.measure.timing import Action, synchronize
from autofuse.torch_private import on_demand

_LEVEL = "KINETO_LOG_LEVEL"  # an environment variable
_COUNTED_BEFORE = ("Parameter", "Buffer", "Optstate", "Total")


@dataclass(frozen=True)
class PeakMemory:
    """Bytes above what was allocated at the start, None where nothing could tell; `source` says what counted them."""

    bytes: int | None
    source: str


def peak_of(action: Action, device: torch.device) -> PeakMemory:
    """The peak of one run: on CUDA the caching allocator's own figure, on a CPU the running sum of all allocations.

    The profiler's allocation events are preferred to MemTracker on a CPU: both gave the same bytes for steps of plain
    operators, but only the events include what a kernel allocates inside (attention's workspace) and compiled code.
    Both ways are private in part, so each is left for the next where this torch lacks it.
    """
    if device.type == "cuda":
        return _cuda_peak(action, device)
    if device.type != "cpu":
        return PeakMemory(None, f"no source for {device.type}")
    for measure, source in ((allocation_events_peak, "torch.profiler"), (mem_tracker_peak, "MemTracker")):
        try:
            return PeakMemory(measure(action), source)
        except (AttributeError, ImportError):
            continue
    return PeakMemory(None, "this torch offers neither allocation events nor MemTracker")


def held_by(action: Action, device: torch.device) -> PeakMemory:
    """What is allocated at the end of one run that was not at its start, while its result is alive.

    Of a forward that keeps tensors for a backward, these and its outputs.
    """
    if device.type == "cuda":
        synchronize(device)
        start = torch.cuda.memory_allocated(device)
        result = action()
        held = torch.cuda.memory_allocated(device) - start
        del result
        return PeakMemory(held, "torch.cuda.memory_allocated")
    if device.type != "cpu":
        return PeakMemory(None, f"no source for {device.type}")
    try:
        return PeakMemory(sum(_allocations(action)), "torch.profiler")
    except AttributeError:
        return PeakMemory(None, "this torch offers no allocation events")


def _cuda_peak(action: Action, device: torch.device) -> PeakMemory:
    synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    action()
    synchronize(device)
    return PeakMemory(torch.cuda.max_memory_allocated(device) - start, "torch.cuda.max_memory_allocated")


def allocation_events_peak(action: Action) -> int:
    """The highest running sum of the profiler's `[memory]` events on the CPU: frees count negative.

    A free of memory from before the run is no event, so memory that is freed and taken again counts as new.
    `key_averages().self_cpu_memory_usage` is no peak: it nets out what a step frees again.
    """
    return max(accumulate(_allocations(action), initial=0))


def _allocations(action: Action) -> list[int]:
    """Bytes that one run takes on the CPU, in order, frees negative; what its result holds stays taken."""
    with quiet_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = action()
    profiler: Any = profiled.profiler
    events = profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    del result
    return changes


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """The profiler writes lines of its own to stderr at any lower level; a level that the user has set stays."""
    was_set = _LEVEL in os.environ
    os.environ.setdefault(_LEVEL, "6")
    try:
        yield
    finally:
        if not was_set:
            os.environ.pop(_LEVEL, None)  # the program in the block may have taken it away


def mem_tracker_peak(action: Action) -> int:
    """The same from torch's MemTracker, which sees the storages of results but not memory within a kernel.

    It counts parameters, buffers and optimizer state too when they are first used; they stood before and are left out.
    """
    tracker: Any = on_demand.MemTracker()
    with tracker:
        action()
    held: Mapping[str, int] = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return sum(size for kind, size in held.items() if kind not in _COUNTED_BEFORE)
