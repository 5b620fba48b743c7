"""Finds torch's own ranges on the host's threads: waiting for data, the optimizer, the backward pass."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from autofuse.profiling.trace.intervals import Interval, IntervalLookup, union
from autofuse.profiling.trace.trace import Event

Phase = Literal["forward", "backward", "optimizer", "data"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "data")

# DataLoader.__next__, Optimizer.step and zero_grad, the autograd engine's nodes. The first match decides.
MARKED: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("data", re.compile(r"enumerate\(DataLoader\)#|enumerate\(DataPipe\)#")),
    ("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#")),
    ("backward", re.compile(r"autograd::engine::evaluate_function|(\w+::)*\w+Backward\d*$|torch::autograd::")),
)


class Marks:
    """The host's ranges of each phase, by thread."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._stepping = {_thread(event) for event in events if event.name.startswith("ProfilerStep#")}
        marked = [(phase, event) for event in events if (phase := _phase_of_range(event.name))]
        nodes = sorted((event.end, event.start) for phase, event in marked if phase == "backward")
        ranges: dict[tuple[str, str], dict[Phase, list[Interval]]] = {}
        for phase, event in marked:
            start = _start_after_closure(event, nodes) if phase == "optimizer" else event.start
            ranges.setdefault(_thread(event), {}).setdefault(phase, []).append((start, event.end))
        self._threads = {
            thread: {phase: IntervalLookup(found) for phase, found in phases.items()}
            for thread, phases in ranges.items()
        }

    def phase_at(self, event: Event) -> Phase:
        """Return the phase in which an event of the host begins; "forward" if it is in no other."""
        phases = self._threads.get(_thread(event), {})
        return next((phase for phase, _ in MARKED if phase in phases and event.start in phases[phase]), "forward")

    def of(self, phase: Phase) -> list[Interval]:
        """Return the moments at which a thread is in a phase.

        For "data", only threads that make steps count if steps are marked, because no step
        waits for data that another thread fetches.
        """
        return union(
            moment
            for thread, phases in self._threads.items()
            if phase in phases and (phase != "data" or not self._stepping or thread in self._stepping)
            for moment in phases[phase].moments
        )


@lru_cache(maxsize=65536)
def _phase_of_range(name: str) -> Phase | None:
    return next((phase for phase, pattern in MARKED if pattern.match(name)), None)


def _start_after_closure(step: Event, nodes: Sequence[Interval]) -> int:
    """Return the start of an optimizer's own work. `step(closure)` runs forward and backward first, within its range.

    nodes: (end, start) of the backward's nodes on any thread, in order of their ends.
    """
    i = bisect_right(nodes, (step.end, step.end)) - 1
    return nodes[i][0] if i >= 0 and nodes[i][1] >= step.start else step.start


def _thread(event: Event) -> tuple[str, str]:
    return str(event.process), str(event.thread)
