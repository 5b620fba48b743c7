"""The part of a trace that is analysed: its steps, and the GPU's work in them. Computes no metric.

`levels_of`, `shares_of`, `categories_of` and `spans_of` all take the result of `scope_of`. So steps are found once and
are the same for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autofuse.profiling.peaks import DevicePeak, override_peak, peak_of
from autofuse.profiling.trace.host_marks import Marks
from autofuse.profiling.trace.intervals import Interval, difference, parts, union
from autofuse.profiling.trace.launch_shapes import Device, device_number, devices_of, stream_number
from autofuse.profiling.trace.steps import ANNOTATIONS, GPU_WORK, LAUNCHES, Steps, correlation, launches_of, steps_of
from autofuse.profiling.trace.trace import Event, Trace
from autofuse.results.comparison import Interval as ShareInterval
from autofuse.results.ratio_interval import ratio_interval

# Namespaces of operators of backends that Kineto does not record, or records only with a plugin.
_BACKENDS = ("npu::", "hpu::", "xla::", "tpu::", "mlu::", "musa::", "privateuseone::", "_xla", "torch_npu", "mps::")


@dataclass(frozen=True)
class Scope:
    """A trace and its steps. Every quantity refers to the steps' windows."""

    trace: Trace
    steps: Steps
    stated_peak: tuple[float | None, float | None] = (None, None)  # the user's FLOP/s and bytes per second

    @cached_property
    def work(self) -> tuple[Event, ...]:
        """Kernels, copies and memsets of all GPUs, in order, without duplicates in the file."""
        keys: set[tuple[Any, ...]] = set()
        found = []
        for event in self.trace.of(*GPU_WORK):
            key = (event.start, event.duration, event.name, device_number(event), str(stream_number(event)))
            if key not in keys:
                keys.add(key)
                found.append(event)
        return tuple(found)

    @cached_property
    def kernels(self) -> tuple[Event, ...]:
        """The kernels among the GPU's work."""
        return tuple(event for event in self.work if event.category == "kernel")

    @cached_property
    def has_gpu(self) -> bool:
        """Whether the trace has work of a GPU."""
        return bool(self.kernels)

    @cached_property
    def host_only(self) -> str:
        """The name of an event which shows that an accelerator was used, if the trace has none of its work.

        Such an event is a launch, or an operator of a backend. The name is "" if there is none, or if the trace has the
        accelerator's work.
        """
        if self.has_gpu:
            return ""
        for event in self.trace.events:
            launches = event.category in LAUNCHES and "launch" in event.name.lower()
            if launches or event.category == "cpu_op" and event.name.startswith(_BACKENDS):
                return event.name
        return ""

    @cached_property
    def by_device(self) -> dict[Any, tuple[Event, ...]]:
        """The kernels that run within the steps, by the number of their GPU."""
        found: dict[Any, list[Event]] = {}
        for kernel in self.kernels:
            if self.within(kernel):
                found.setdefault(device_number(kernel), []).append(kernel)
        return {number: tuple(kernels) for number, kernels in found.items()}

    @cached_property
    def devices(self) -> dict[Any, Device]:
        """The GPUs that the trace describes. If all of them are alike, the others are assumed to be alike, too."""
        described = devices_of(self.trace)
        if len({*described.values()}) != 1:
            return described
        return dict.fromkeys(self.by_device, next(iter(described.values()))) | described

    @cached_property
    def launches(self) -> dict[int, Event]:
        """The host's calls that launched GPU work, by correlation id."""
        return launches_of(self.trace)

    @cached_property
    def marks(self) -> Marks:
        """The host's ranges by phase."""
        return Marks(self.trace.of(*ANNOTATIONS))

    @cached_property
    def peak(self) -> DevicePeak | None:
        """The GPU's peak, from its data sheet or from the user; None if neither is known."""
        return override_peak(*self.stated_peak, peak_of(self.device_name))

    @cached_property
    def device_name(self) -> str:
        """The name of the first GPU that ran a kernel; "" if the trace does not have it."""
        return next((self.devices[number].name for number in self.by_device if number in self.devices), "")

    def launch_of(self, work: Event) -> Event | None:
        """Return the host's call that launched GPU work; None if the trace does not have it."""
        return self.launches.get(correlation(work))

    def within(self, event: Event) -> list[Interval]:
        """Return the parts of an event's time that are in the steps."""
        return parts(event.start, event.end, self.steps.windows, self._starts)

    def nanoseconds(self, event: Event) -> int:
        """Return how long an event lasts within the steps."""
        return sum(end - start for start, end in self.within(event))

    def begins(self, event: Event) -> bool:
        """Whether an event begins in a step."""
        return self.step_at(event.start) is not None

    def moments(self, events: Iterable[Event]) -> list[Interval]:
        """Return the moments of the steps at which any of these events runs."""
        return union(part for event in events for part in self.within(event))

    def rest(self, *sets: Sequence[Interval]) -> list[Interval]:
        """Return the moments of the steps that are in none of these sets."""
        remaining: list[Interval] = list(self.steps.windows)
        for moments in sets:
            remaining = difference(remaining, moments)
        return remaining

    def step_at(self, moment: int) -> int | None:
        """Return the index of the step that contains a moment; None if no step does."""
        i = bisect_right(self._starts, moment) - 1
        return i if i >= 0 and moment < self.steps.windows[i][1] else None

    def by_step(self, moments: Iterable[Interval]) -> list[int]:
        """Return the nanoseconds of each step that are in a set of moments within the steps."""
        found = [0] * len(self.steps.windows)
        for start, end in moments:
            if (at := self.step_at(start)) is not None:
                found[at] += end - start
        return found

    def interval(self, by_step: Sequence[float]) -> ShareInterval | None:
        """Return the 95 % interval of a share, from its nanoseconds in each step.

        The result is None if steps are not marked one by one, or if there is only one.
        """
        if self.steps.count != len(self.steps.windows):
            return None
        return ratio_interval(by_step, [end - start for start, end in self.steps.windows])

    def share(self, nanoseconds: float) -> float:
        """Return nanoseconds as a fraction of the steps."""
        return nanoseconds / self.steps.nanoseconds if self.steps.nanoseconds else 0.0

    def seconds(self, nanoseconds: float) -> float:
        """Return nanoseconds of all steps as seconds of one step, on average."""
        return nanoseconds / self.steps.count * 1e-9

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self.steps.windows]


def scope_of(
    trace: Trace, steps: Steps | None = None, peak: tuple[float | None, float | None] = (None, None)
) -> Scope:  # fmt: skip
    """Return the scope of a trace.

    Args:
        trace: The trace.
        steps: The steps, if they are known better than the trace shows them.
        peak: FLOP/s and bytes per second, as in peaks.override_peak.
    """
    return Scope(trace, steps or steps_of(trace), peak)


def with_own_time(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Return each event with its own nanoseconds, without those of events within it; the outer before the inner.

    Events of several threads may be mixed, but those of each thread come in order. If an event ends after the event
    that contains its start (rounding, or a wait that another thread ends), only the part inside counts as within it.
    """
    threads: dict[tuple[str, str], list[list[Any]]] = {}
    entries: list[list[Any]] = []
    for event in events:
        open_ones = threads.setdefault((str(event.process), str(event.thread)), [])
        while open_ones and open_ones[-1][0].end <= event.start:
            open_ones.pop()
        entry = [event, event.duration]
        if open_ones:
            outer = open_ones[-1]
            outer[1] -= min(event.end, outer[0].end) - event.start
        open_ones.append(entry)
        entries.append(entry)
    return ((event, max(0, nanoseconds)) for event, nanoseconds in entries)
