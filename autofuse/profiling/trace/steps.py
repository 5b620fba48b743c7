"""Which stretches of a trace are training steps, and how that is known. Knows annotations and launches, no kernels.

Every number of a trace is of one step on average over the steps found here. A step is one call of the profiler's
`step()`, which torch marks as `ProfilerStep#N`. Where none are marked the whole span of the trace is looked at, as
many steps as an optimizer stepped in it, or one.

A GPU runs behind: what a step launches may run after the step's own annotation has ended. So **a step lasts from its
annotation's beginning to its end, or to the end of the last GPU work that was launched in it where that is later,
but never into the next step.** What runs in a step counts for it by time, whoever launched it.
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
_CALL = "nn.Module: "  # of torch's stacks of Python functions, what belongs to the model
CUT = 0.1  # of the others' length: what a last step that is shorter was cut to
_STEP = re.compile(r"ProfilerStep#\s*(\d+)")
_OPTIMIZER = re.compile(r"Optimizer\.step#(.*)")
_WORK = ("cpu_op", *GPU_WORK, *LAUNCHES, "user_annotation", "gpu_user_annotation", "")


@dataclass(frozen=True)
class Steps:
    """Disjoint stretches of a trace, in order, nanoseconds; how many steps they are, and how that is known."""

    windows: tuple[Interval, ...]
    count: int
    basis: str

    @property
    def nanoseconds(self) -> int:
        """All of them together."""
        return length(self.windows)

    @property
    def seconds(self) -> float:
        """One step, on average."""
        return self.nanoseconds / self.count * 1e-9


def steps_of(trace: Trace) -> Steps:
    """The steps of a trace. A trace without any event has one step that takes no time."""
    marked = _marked(trace, "user_annotation") or _marked(trace, "cpu_op") or _marked(trace, "gpu_user_annotation")
    used = _used(marked, trace) or marked
    if not used:
        return _whole(trace)
    if used[0].category != "gpu_user_annotation" and (window := _behind(used, trace)):
        return Steps(
            (window,), len(used), f"{_counted(len(used), 'step')} (ProfilerStep; to the end of the GPU's work)"
        )
    windows = _with_their_gpu_work(used, trace)
    numbers = [_number(event) for event in used]
    named = f"#{numbers[0]}" if len(used) == 1 else f"#{numbers[0]} to #{numbers[-1]}"
    where = "" if used[0].category != "gpu_user_annotation" else ", as the GPU's own marks tell"
    idle = len(marked) - len(used)
    without = f"; {idle} left out, in which nothing ran or which was cut short" if idle else ""
    return Steps(windows, len(windows), f"{_counted(len(windows), 'step')} (ProfilerStep{named}{where}{without})")


def _marked(trace: Trace, category: str) -> list[Event]:
    """The annotations of steps, in order; of those that begin within one of the same number, the first."""
    found: list[Event] = []
    for event in trace.of(category):
        if not _STEP.match(event.name):
            continue
        if found and event.start < found[-1].end and _number(event) == _number(found[-1]):
            continue
        found.append(event)
    return [event for event in found if event.duration]


def _number(event: Event) -> int:
    match = _STEP.match(event.name)
    return int(match[1]) if match else 0


def _used(marked: Sequence[Event], trace: Trace) -> list[Event]:
    """Those in which something begins; and not the last one, if it is far shorter than the others.

    The last call of `step()` opens a step that ends with the profiler itself.
    """
    works = ("cpu_op", *GPU_WORK, *LAUNCHES)
    starts = [e.start for e in trace.events if e.category in works and not _STEP.match(e.name)]
    used = [e for e in marked if bisect_right(starts, e.end - 1) > bisect_right(starts, e.start - 1)]
    cut = len(used) > 1 and used[-1].duration < CUT * median(event.duration for event in used[:-1])
    return used[:-1] if cut else used


def _behind(marked: Sequence[Event], trace: Trace) -> Interval | None:
    """From the first step's beginning to the end of the GPU's work, where nothing ties that to its launches: when the
    GPU is done with a step is not known then. None where it is, or where the GPU does nothing after the steps."""
    work = trace.of(*GPU_WORK)
    launched = launches_of(trace)
    if not work or not trace.of(*LAUNCHES) or 2 * sum(correlation(w) in launched for w in work) > len(work):
        return None
    end = max(w.end for w in work)
    return (marked[0].start, end) if end > marked[-1].end else None


def _with_their_gpu_work(marked: Sequence[Event], trace: Trace) -> tuple[Interval, ...]:
    starts, ends = [event.start for event in marked], [event.end for event in marked]
    launched = launches_of(trace)
    for work in trace.of(*GPU_WORK):
        launch = launched.get(correlation(work))
        moment = work.start if launch is None else launch.start
        i = bisect_right(starts, moment) - 1
        if i >= 0 and moment < marked[i].end:
            ends[i] = max(ends[i], work.end)
    limits = [*starts[1:], None]
    return tuple(
        (start, end if limit is None else min(end, limit))
        for start, end, limit in zip(starts, ends, limits, strict=True)
    )


def launches_of(trace: Trace) -> dict[int, Event]:
    """The call that launched GPU work, by the correlation id that both bear; one call may launch a whole graph."""
    found = {}
    for event in trace.of(*LAUNCHES):
        key = correlation(event)
        if key > 0:
            found[key] = event
    return found


def correlation(event: Event) -> int:
    """The id that ties GPU work to its launch; 0, which is nobody's, where the trace tells none."""
    return integer(event.args.get("correlation")) or 0


def _whole(trace: Trace) -> Steps:
    events = [e for e in trace.events if e.category in _WORK or e.name.startswith(_CALL)] or list(trace.events)
    if not events:
        return Steps(((0, 0),), 1, "an empty trace")
    window = (min(e.start for e in events), max(e.end for e in events))
    stepped = Counter(m[1] for e in trace.events if e.category in ANNOTATIONS and (m := _OPTIMIZER.match(e.name)))
    count = max(stepped.values(), default=0)
    if count > 1:
        return Steps((window,), count, f"the whole trace, {count} steps: so often its optimizer stepped")
    return Steps((window,), 1, "the whole trace as one step, for it marks none (ProfilerStep)")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
