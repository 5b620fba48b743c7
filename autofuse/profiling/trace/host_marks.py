"""Where on the host's threads torch says what it is doing: waiting for data, the optimizer, the backward pass.

Knows torch's names for its own ranges, and no GPU work.
"""

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

# DataLoader.__next__, Optimizer.step and zero_grad, the autograd engine's nodes. The first that is found decides.
MARKED: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("data", re.compile(r"enumerate\(DataLoader\)#|enumerate\(DataPipe\)#")),
    ("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#")),
    ("backward", re.compile(r"autograd::engine::evaluate_function|(\w+::)*\w+Backward\d*$|torch::autograd::")),
)


class Marks:
    """The host's ranges of each phase, thread by thread."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._stepping = {_thread(event) for event in events if event.name.startswith("ProfilerStep#")}
        marked = [(phase, event) for event in events if (phase := _marked(event.name))]
        nodes = sorted((event.end, event.start) for phase, event in marked if phase == "backward")
        ranges: dict[tuple[str, str], dict[Phase, list[Interval]]] = {}
        for phase, event in marked:
            start = _behind_closure(event, nodes) if phase == "optimizer" else event.start
            ranges.setdefault(_thread(event), {}).setdefault(phase, []).append((start, event.end))
        self._threads = {
            thread: {phase: IntervalLookup(found) for phase, found in phases.items()}
            for thread, phases in ranges.items()
        }

    def phase_at(self, event: Event) -> Phase:
        """The phase in which a host's event begins; forward is what lies in no other."""
        phases = self._threads.get(_thread(event), {})
        return next((phase for phase, _ in MARKED if phase in phases and event.start in phases[phase]), "forward")

    def of(self, phase: Phase) -> list[Interval]:
        """The moments at which a thread is in a phase.

        For data, one that makes the steps, where that is marked: what a thread of its own fetches nobody waits for.
        """
        return union(
            moment
            for thread, phases in self._threads.items()
            if phase in phases and (phase != "data" or not self._stepping or thread in self._stepping)
            for moment in phases[phase].moments
        )


@lru_cache(maxsize=65536)
def _marked(name: str) -> Phase | None:
    return next((phase for phase, pattern in MARKED if pattern.match(name)), None)


def _behind_closure(step: Event, nodes: Sequence[Interval]) -> int:
    """Where an optimizer's own work begins: `step(closure)` runs forward and backward first, within its range.

    nodes: (end, start) of the backward's, on any thread, in order of their ends.
    """
    i = bisect_right(nodes, (step.end, step.end)) - 1
    return nodes[i][0] if i >= 0 and nodes[i][1] >= step.start else step.start


def _thread(event: Event) -> tuple[str, str]:
    return str(event.process), str(event.thread)
