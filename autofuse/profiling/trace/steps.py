"""Finds the training steps in a trace, and says how they were found. Uses annotations and launches.

Every number of a trace is the average over the steps found here. A step is one call of the profiler's `step()`, which
torch marks as `ProfilerStep#N`. If no steps are marked, the whole trace counts: as many steps as an optimizer made in
it, or one.

A GPU runs behind the host: work that a step launches may run after the step's annotation has ended. So **a step lasts
from its annotation's start to its end, or to the end of the last GPU work launched in it if that is later, but at most
to the start of the next step.** Everything that runs in this time counts for the step, whatever launched it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autofuse.profiling.trace.intervals import Interval, length
from autofuse.profiling.trace.trace import Event, Trace, integer

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "privateuse1_runtime")
ANNOTATIONS = ("user_annotation", "cpu_op", "")
_CALL = "nn.Module: "  # begins the names of the model's calls in torch's stacks
CUT = 0.1  # a last step that is shorter than this fraction of the others was cut short
_STEP = re.compile(r"ProfilerStep#\s*(\d+)")
_OPTIMIZER = re.compile(r"Optimizer\.step#(.*)")
_WORK = ("cpu_op", *GPU_WORK, *LAUNCHES, "user_annotation", "gpu_user_annotation", "")


@dataclass(frozen=True)
class Steps:
    """Disjoint parts of a trace, in order, in nanoseconds; how many steps they are, and how they were found."""

    windows: tuple[Interval, ...]
    count: int
    basis: str

    @property
    def nanoseconds(self) -> int:
        """The length of all steps together."""
        return length(self.windows)

    @property
    def seconds(self) -> float:
        """The length of one step, on average."""
        return self.nanoseconds / self.count * 1e-9


def steps_of(trace: Trace) -> Steps:
    """Return the steps of a trace. A trace without events has one step that takes no time."""
    marks = (
        _step_marks(trace, "user_annotation")
        or _step_marks(trace, "cpu_op")
        or _step_marks(trace, "gpu_user_annotation")
    )
    used = _complete_marks(marks, trace) or marks
    if not used:
        return _whole_trace(trace)
    if used[0].category != "gpu_user_annotation" and (window := _unlinked_window(used, trace)):
        return Steps(
            (window,),
            len(used),
            f"{_count_text(len(used), 'step')} (ProfilerStep), until the GPU has finished their work",
        )
    windows = _windows_with_gpu_work(used, trace)
    numbers = [_step_number(event) for event in used]
    named = f"#{numbers[0]}" if len(used) == 1 else f"#{numbers[0]} to #{numbers[-1]}"
    where = "" if used[0].category != "gpu_user_annotation" else ", from the GPU's own marks"
    idle = len(marks) - len(used)
    without = f"; {idle} left out, because nothing ran in it or it was cut short" if idle else ""
    return Steps(windows, len(windows), f"{_count_text(len(windows), 'step')} (ProfilerStep{named}{where}{without})")


def _step_marks(trace: Trace, category: str) -> list[Event]:
    """Return the annotations of steps, in order. If one begins within another of the same number, keep the first."""
    found: list[Event] = []
    for event in trace.of(category):
        if not _STEP.match(event.name):
            continue
        if found and event.start < found[-1].end and _step_number(event) == _step_number(found[-1]):
            continue
        found.append(event)
    return [event for event in found if event.duration]


def _step_number(event: Event) -> int:
    match = _STEP.match(event.name)
    return int(match[1]) if match else 0


def _complete_marks(marks: Sequence[Event], trace: Trace) -> list[Event]:
    """Return the marks in which something begins, without the last one if it is far shorter than the others.

    The last call of `step()` opens a step that ends with the profiler itself.
    """
    works = ("cpu_op", *GPU_WORK, *LAUNCHES)
    starts = [e.start for e in trace.events if e.category in works and not _STEP.match(e.name)]
    used = [e for e in marks if bisect_right(starts, e.end - 1) > bisect_right(starts, e.start - 1)]
    cut = len(used) > 1 and used[-1].duration < CUT * median(event.duration for event in used[:-1])
    return used[:-1] if cut else used


def _unlinked_window(marks: Sequence[Event], trace: Trace) -> Interval | None:
    """Return the time from the first step's start to the end of the GPU's work, if that work is not linked to launches.

    Without links, it is unknown when the GPU finishes a step. The result is None if most work is linked, or if the GPU
    does nothing after the steps.
    """
    work = trace.of(*GPU_WORK)
    launches = launches_of(trace)
    if not work or not trace.of(*LAUNCHES) or 2 * sum(correlation(w) in launches for w in work) > len(work):
        return None
    end = max(w.end for w in work)
    return (marks[0].start, end) if end > marks[-1].end else None


def _windows_with_gpu_work(marks: Sequence[Event], trace: Trace) -> tuple[Interval, ...]:
    starts, ends = [event.start for event in marks], [event.end for event in marks]
    launches = launches_of(trace)
    for work in trace.of(*GPU_WORK):
        launch = launches.get(correlation(work))
        moment = work.start if launch is None else launch.start
        i = bisect_right(starts, moment) - 1
        if i >= 0 and moment < marks[i].end:
            ends[i] = max(ends[i], work.end)
    limits = [*starts[1:], None]
    return tuple(
        (start, end if limit is None else min(end, limit))
        for start, end, limit in zip(starts, ends, limits, strict=True)
    )


def launches_of(trace: Trace) -> dict[int, Event]:
    """Return the calls that launched GPU work, by the correlation id of both. One call may launch a whole graph."""
    found = {}
    for event in trace.of(*LAUNCHES):
        key = correlation(event)
        if key > 0:
            found[key] = event
    return found


def correlation(event: Event) -> int:
    """Return the id that links GPU work to its launch; 0 if the trace has none. No launch has the id 0."""
    return integer(event.args.get("correlation")) or 0


def _whole_trace(trace: Trace) -> Steps:
    events = [e for e in trace.events if e.category in _WORK or e.name.startswith(_CALL)] or list(trace.events)
    if not events:
        return Steps(((0, 0),), 1, "an empty trace")
    window = (min(e.start for e in events), max(e.end for e in events))
    stepped = Counter(m[1] for e in trace.events if e.category in ANNOTATIONS and (m := _OPTIMIZER.match(e.name)))
    count = max(stepped.values(), default=0)
    if count > 1:
        return Steps((window,), count, f"the whole trace, {count} steps: as many as steps of its optimizer")
    return Steps((window,), 1, "the whole trace as one step, because it marks none (ProfilerStep)")


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
