"""What of a trace is looked at: its steps, and the GPU's work in them. Knows which event is what, computes no metric.

`levels_of`, `shares_of`, `categories_of` and `spans_of` all take what `scope_of` makes of a trace, so that the steps
are looked for once and are the same for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autofuse.profiling.peaks import DevicePeak, peak_of, stated
from autofuse.profiling.trace.host_marks import Marks
from autofuse.profiling.trace.intervals import Interval, difference, parts, union
from autofuse.profiling.trace.launch_shapes import Device, device_number, devices_of, stream_number
from autofuse.profiling.trace.steps import ANNOTATIONS, GPU_WORK, LAUNCHES, Steps, correlation, launches_of, steps_of
from autofuse.profiling.trace.trace import Event, Trace
from autofuse.results.comparison import Interval as ShareInterval
from autofuse.results.ratio_interval import ratio_interval

# Namespaces of operators of backends whose work Kineto does not record, or records only with a plugin.
_BACKENDS = ("npu::", "hpu::", "xla::", "tpu::", "mlu::", "musa::", "privateuseone::", "_xla", "torch_npu", "mps::")


@dataclass(frozen=True)
class Scope:
    """A trace, and its steps. Every quantity is of what happens within the steps' windows."""

    trace: Trace
    steps: Steps
    stated: tuple[float | None, float | None] = (None, None)  # FLOP/s and bytes a second, where somebody says them

    @cached_property
    def work(self) -> tuple[Event, ...]:
        """Kernels, copies and memsets of all GPUs, in order; what a file holds twice, once."""
        seen: set[tuple[Any, ...]] = set()
        found = []
        for event in self.trace.of(*GPU_WORK):
            key = (event.start, event.duration, event.name, device_number(event), str(stream_number(event)))
            if key not in seen:
                seen.add(key)
                found.append(event)
        return tuple(found)

    @cached_property
    def kernels(self) -> tuple[Event, ...]:
        """The kernels among the GPU's work."""
        return tuple(event for event in self.work if event.category == "kernel")

    @cached_property
    def has_gpu(self) -> bool:
        """Whether the trace saw a GPU at work."""
        return bool(self.kernels)

    @cached_property
    def host_only(self) -> str:
        """What shows that an accelerator ran the work of a trace that has none of it: a launch, or an operator of a
        backend's own; "" where nothing does, or the trace has the accelerator's work."""
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
        """The GPUs that the trace describes; where all of them are alike, so are those that it does not describe."""
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
        """Where the host says what it is doing."""
        return Marks(self.trace.of(*ANNOTATIONS))

    @cached_property
    def peak(self) -> DevicePeak | None:
        """What the GPU can do at most, by its data sheet or as it was stated; None where neither is known."""
        return stated(*self.stated, peak_of(self.device_name))

    @cached_property
    def device_name(self) -> str:
        """Of the first GPU that ran a kernel, "" where the trace does not tell."""
        return next((self.devices[number].name for number in self.by_device if number in self.devices), "")

    def launch_of(self, work: Event) -> Event | None:
        """The host's call that launched some GPU work; None where the trace does not tell."""
        return self.launches.get(correlation(work))

    def within(self, event: Event) -> list[Interval]:
        """The parts of an event's time that lie in the steps."""
        return parts(event.start, event.end, self.steps.windows, self._starts)

    def nanoseconds(self, event: Event) -> int:
        """How long an event lasts within the steps."""
        return sum(end - start for start, end in self.within(event))

    def begins(self, event: Event) -> bool:
        """Whether an event begins in a step."""
        return self.step_at(event.start) is not None

    def moments(self, events: Iterable[Event]) -> list[Interval]:
        """The moments of the steps at which any of these is under way."""
        return union(part for event in events for part in self.within(event))

    def rest(self, *sets: Sequence[Interval]) -> list[Interval]:
        """The moments of the steps that are in none of these sets."""
        left: list[Interval] = list(self.steps.windows)
        for moments in sets:
            left = difference(left, moments)
        return left

    def step_at(self, moment: int) -> int | None:
        """The number of the step that a moment lies in, from 0; None for a moment in none."""
        i = bisect_right(self._starts, moment) - 1
        return i if i >= 0 and moment < self.steps.windows[i][1] else None

    def by_step(self, moments: Iterable[Interval]) -> list[int]:
        """Nanoseconds of each step that lie in a set of moments, all of which are within the steps."""
        found = [0] * len(self.steps.windows)
        for start, end in moments:
            if (at := self.step_at(start)) is not None:
                found[at] += end - start
        return found

    def interval(self, by_step: Sequence[float]) -> ShareInterval | None:
        """The 95 % interval of the share that these nanoseconds of each step are; None where steps are not marked one
        by one, or there is one only."""
        if self.steps.count != len(self.steps.windows):
            return None
        return ratio_interval(by_step, [end - start for start, end in self.steps.windows])

    def share(self, nanoseconds: float) -> float:
        """As a fraction of the steps."""
        return nanoseconds / self.steps.nanoseconds if self.steps.nanoseconds else 0.0

    def seconds(self, nanoseconds: float) -> float:
        """Of one step, on average."""
        return nanoseconds / self.steps.count * 1e-9

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self.steps.windows]


def scope_of(
    trace: Trace, steps: Steps | None = None, peak: tuple[float | None, float | None] = (None, None)
) -> Scope:  # fmt: skip
    """What of a trace is looked at; `steps` if they are known better than the trace tells, `peak` as `stated` is."""
    return Scope(trace, steps or steps_of(trace), peak)


def nested(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Each of a thread's events with the nanoseconds that no event within it takes; the outer before the inner.

    Threads may be mixed; the events of each come in order. An event that outlasts the one it began in (rounding, or
    a wait that another thread ends) counts as within it as far as it goes.
    """
    threads: dict[tuple[str, str], list[list[Any]]] = {}
    own: list[list[Any]] = []
    for event in events:
        open_ones = threads.setdefault((str(event.process), str(event.thread)), [])
        while open_ones and open_ones[-1][0].end <= event.start:
            open_ones.pop()
        entry = [event, event.duration]
        if open_ones:
            outer = open_ones[-1]
            outer[1] -= min(event.end, outer[0].end) - event.start
        open_ones.append(entry)
        own.append(entry)
    return ((event, max(0, nanoseconds)) for event, nanoseconds in own)
