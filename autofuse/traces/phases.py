"""Which part of a training step something belongs to: forward, backward, optimizer, waiting for data.

Knows how torch marks them on the host's threads, and follows GPU work to the host's call that launched it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

from autofuse.traces.intervals import Interval, Within, difference, union
from autofuse.traces.operators import category_of
from autofuse.traces.scope import Scope
from autofuse.traces.steps import ANNOTATIONS
from autofuse.traces.trace import Event

Phase = Literal["forward", "backward", "optimizer", "data"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "data")

# What torch calls its own ranges: DataLoader.__next__, Optimizer.step and zero_grad, the autograd engine's nodes.
_MARKS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("data", re.compile(r"enumerate\(DataLoader\)#|enumerate\(DataPipe\)#")),
    ("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#")),
    ("backward", re.compile(r"autograd::engine::evaluate_function|(\w+::)*\w+Backward\d*$|torch::autograd::")),
)
# Ranges that are no operator: torch's own marks, and what users mark.
_LABEL = re.compile(
    r"ProfilerStep#|Optimizer\.\w+#|enumerate\(Data|mod::|DistributedDataParallel\.|## |\[pl\]|FullyShar"
)


class Marks:
    """The host's ranges of each phase, thread by thread."""

    def __init__(self, events: Iterable[Event]) -> None:
        marked = [(phase, event) for event in events if (phase := _marked(event))]
        nodes = sorted((event.end, event.start) for phase, event in marked if phase == "backward")
        ranges: dict[tuple[str, str], dict[Phase, list[Interval]]] = {}
        for phase, event in marked:
            start = _behind_closure(event, nodes) if phase == "optimizer" else event.start
            ranges.setdefault(_thread(event), {}).setdefault(phase, []).append((start, event.end))
        self._threads = {
            thread: {phase: Within(found) for phase, found in phases.items()} for thread, phases in ranges.items()
        }

    def phase_at(self, event: Event) -> Phase:
        """The phase in which a host's event begins; forward is what lies in no other."""
        phases = self._threads.get(_thread(event), {})
        return next((phase for phase, _ in _MARKS if phase in phases and event.start in phases[phase]), "forward")

    def of(self, phase: Phase) -> list[Interval]:
        """The moments at which any thread is in a phase."""
        return union(m for phases in self._threads.values() if phase in phases for m in phases[phase].moments)


def marks_of(scope: Scope) -> Marks:
    """The marks in a trace."""
    return Marks(scope.trace.of(*ANNOTATIONS))


def host_moments(scope: Scope, marks: Marks) -> dict[Phase, list[Interval]]:
    """On a CPU: the moments of each phase within the steps, disjoint.

    Waits for data and the optimizer are torch's own ranges, the backward pass the autograd engine's nodes; the
    forward pass is every other moment at which an operator runs, loss included.
    """
    found: dict[Phase, list[Interval]] = {}
    taken: list[Interval] = []
    for phase, moments in (*((p, marks.of(p)) for p, _ in _MARKS), ("forward", busy_on_host(scope))):
        found[phase] = difference(_in_steps(scope, moments), taken)
        taken = union([*taken, *found[phase]])
    return found


def device_moments(scope: Scope, marks: Marks) -> tuple[dict[Phase, list[Interval]], list[Interval]]:
    """On a GPU: the moments at which it works for each phase, disjoint; and those for which that cannot be told.

    Work belongs to the phase in which the host launched it. Where kernels of several phases run at once the moment is
    the forward's, else the backward's. Waiting for data is a DataLoader's range in which the GPU runs nothing.
    """
    by_phase: dict[Phase | None, list[Event]] = {}
    for work in scope.work:
        by_phase.setdefault(phase_of(work, scope, marks), []).append(work)
    found: dict[Phase, list[Interval]] = {}
    taken: list[Interval] = []
    for phase in PHASES[:3]:
        found[phase] = difference(scope.moments(by_phase.get(phase, ())), taken)
        taken = union([*taken, *found[phase]])
    unknown = difference(scope.moments(by_phase.get(None, ())), taken)
    found["data"] = difference(_in_steps(scope, marks.of("data")), scope.moments(scope.work))
    return found, unknown


def phase_of(work: Event, scope: Scope, marks: Marks) -> Phase | None:
    """The phase that some GPU work was launched in; None where the trace does not tell.

    A captured graph is launched by one call whatever is in it, so its call tells only what surrounds it.
    """
    launch = scope.launch_of(work)
    if launch is None:
        return None
    phase = marks.phase_at(launch)
    if phase == "data":  # copies to the device and what a collate function computes there
        return "forward"
    return None if phase == "forward" and "GraphLaunch" in launch.name else phase


def operators(scope: Scope) -> list[Event]:
    """The host's operators, without labels."""
    return [event for event in scope.trace.of("cpu_op") if not _LABEL.match(event.name)]


def busy_on_host(scope: Scope) -> list[Interval]:
    """The moments of the steps at which any thread runs an operator."""
    return scope.moments(operators(scope))


def computing_on_host(scope: Scope) -> list[Interval]:
    """The moments of the steps at which any thread runs an operator that computes or moves data, no collective."""
    events = (*scope.trace.of("cpu_op"), *scope.trace.of("user_annotation"))
    return scope.moments(e for e in events if category_of(e.name) not in ("", "communication"))


def _marked(event: Event) -> Phase | None:
    return next((phase for phase, pattern in _MARKS if pattern.match(event.name)), None)


def _behind_closure(step: Event, nodes: Sequence[Interval]) -> int:
    """Where an optimizer's own work begins: `step(closure)` runs forward and backward first, within its range.

    nodes: (end, start) of the backward's, on any thread, in order of their ends.
    """
    i = bisect_right(nodes, (step.end, step.end)) - 1
    return nodes[i][0] if i >= 0 and nodes[i][1] >= step.start else step.start


def _thread(event: Event) -> tuple[str, str]:
    return str(event.process), str(event.thread)


def _in_steps(scope: Scope, moments: list[Interval]) -> list[Interval]:
    return scope.rest(scope.rest(moments))
