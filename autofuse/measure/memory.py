"""Measures the peak memory of one run, above what was allocated before it."""

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
_ALLOCATED_BEFORE = ("Parameter", "Buffer", "Optstate", "Total")


@dataclass(frozen=True)
class PeakMemory:
    """A measured amount of memory.

    Attributes:
        bytes: Bytes above what was allocated at the start; None if there is no way to measure it.
        source: The name of the instrument.
    """

    bytes: int | None
    source: str


def measure_peak_memory(action: Action, device: torch.device) -> PeakMemory:
    """Measures the peak memory of one run of `action`.

    On CUDA the caching allocator reports it. On a CPU it is the highest running sum of allocations: from the
    profiler's events, or from MemTracker if this version of torch has no such events. Both give the same bytes for
    plain operators, but only events include allocations inside a kernel (attention's workspace) and compiled code.
    """
    if device.type == "cuda":
        return _measure_cuda_peak(action, device)
    if device.type != "cpu":
        return PeakMemory(None, f"no source for {device.type}")
    for measure, source in ((allocation_events_peak, "torch.profiler"), (mem_tracker_peak, "MemTracker")):
        try:
            return PeakMemory(measure(action), source)
        except (AttributeError, ImportError):
            continue
    return PeakMemory(None, "this torch offers neither allocation events nor MemTracker")


def measure_held_memory(action: Action, device: torch.device) -> PeakMemory:
    """Measures the memory that one run of `action` still holds at its end, while its result is alive.

    For a forward pass this is its outputs and the tensors that autograd saves for the backward pass.
    """
    if device.type == "cuda":
        synchronize(device)
        start = torch.cuda.memory_allocated(device)
        result = action()
        held_bytes = torch.cuda.memory_allocated(device) - start
        del result
        return PeakMemory(held_bytes, "torch.cuda.memory_allocated")
    if device.type != "cpu":
        return PeakMemory(None, f"no source for {device.type}")
    try:
        return PeakMemory(sum(_record_allocations(action)), "torch.profiler")
    except AttributeError:
        return PeakMemory(None, "this torch offers no allocation events")


def _measure_cuda_peak(action: Action, device: torch.device) -> PeakMemory:
    synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    action()
    synchronize(device)
    return PeakMemory(torch.cuda.max_memory_allocated(device) - start, "torch.cuda.max_memory_allocated")


def allocation_events_peak(action: Action) -> int:
    """Returns the highest running sum of the profiler's `[memory]` events on the CPU, in bytes. Frees are negative.

    The free of memory from before the run has no event, so memory that is freed and allocated again counts as new.
    `key_averages().self_cpu_memory_usage` is not a peak: frees are already subtracted.
    """
    return max(accumulate(_record_allocations(action), initial=0))


def _record_allocations(action: Action) -> list[int]:
    """Returns the allocations of one run on the CPU, in bytes and in order. Frees are negative.

    The result is alive until the end, so its memory is not freed.
    """
    with quiet_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = action()
    profiler: Any = profiled.profiler
    events = profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    del result
    return changes


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Keeps the profiler from writing to stderr in the block. A level that the user has set stays."""
    was_set = _LEVEL in os.environ
    os.environ.setdefault(_LEVEL, "6")
    try:
        yield
    finally:
        if not was_set:
            os.environ.pop(_LEVEL, None)  # code in the block may have removed it


def mem_tracker_peak(action: Action) -> int:
    """Returns the peak memory of one run by torch's MemTracker, in bytes. It does not see allocations inside a kernel.

    MemTracker also counts parameters, buffers and optimizer state at their first use. They existed before the run, so
    they are left out.
    """
    tracker: Any = on_demand.MemTracker()
    with tracker:
        action()
    sizes: Mapping[str, int] = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return sum(size for kind, size in sizes.items() if kind not in _ALLOCATED_BEFORE)
