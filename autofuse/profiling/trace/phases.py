"""Finds the phase of a training step that an event belongs to: forward, backward, optimizer, waiting for data.

On a GPU, work belongs to the phase of the host's call that launched it.
"""

from __future__ import annotations

import re

from autofuse.ir.operator_categories import category_of
from autofuse.profiling.trace.event_owners import MODULE, NAMELESS
from autofuse.profiling.trace.host_marks import MARKED, PHASES, Phase
from autofuse.profiling.trace.intervals import Interval, difference, union
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

# Dynamo, users and autofuse record ranges in the category of operators, too. Operators have a namespace, and the names
# of autograd nodes contain Backward.
_OPERATOR = re.compile(r"(?!mod::)(\w+::)+[\w.]+$|\w+Backward\d*$|autograd::engine::evaluate_function")


def host_moments(scope: Scope) -> dict[Phase, list[Interval]]:
    """Return, on a CPU, the moments of each phase within the steps, disjoint.

    Waits for data and the optimizer are torch's own ranges. The backward pass is the autograd engine's nodes. The
    forward pass is every other moment at which a module is called or an operator runs, loss included. The Python of a
    module's call belongs to the forward.
    """
    found: dict[Phase, list[Interval]] = {}
    taken: list[Interval] = []
    forward = union([*busy_on_host(scope), *_calls(scope)])
    for phase, moments in (*((p, scope.marks.of(p)) for p, _ in MARKED), ("forward", forward)):
        found[phase] = difference(_in_steps(scope, moments), taken)
        taken = union([*taken, *found[phase]])
    return found


def device_moments(scope: Scope) -> tuple[dict[Phase, list[Interval]], list[Interval]]:
    """Return, on a GPU, the moments at which it works for each phase, disjoint, and those with an unknown phase.

    Work belongs to the phase in which the host launched it. If kernels of several phases run at once, the moment
    belongs to the forward, else to the backward. Waiting for data is a DataLoader's range in which the GPU runs
    nothing.
    """
    by_phase: dict[Phase | None, list[Event]] = {}
    for work in scope.work:
        by_phase.setdefault(phase_of(work, scope), []).append(work)
    found: dict[Phase, list[Interval]] = {}
    taken: list[Interval] = []
    for phase in PHASES[:3]:
        found[phase] = difference(scope.moments(by_phase.get(phase, ())), taken)
        taken = union([*taken, *found[phase]])
    unknown = difference(scope.moments(by_phase.get(None, ())), taken)
    found["data"] = difference(_in_steps(scope, scope.marks.of("data")), scope.moments(scope.work))
    return found, unknown


def phase_of(work: Event, scope: Scope) -> Phase | None:
    """Return the phase in which GPU work was launched; None if the trace does not show it.

    One call launches a captured graph, whatever the graph contains. So such a call shows the surrounding phase only.
    """
    launch = scope.launch_of(work)
    if launch is None:
        return None
    phase = scope.marks.phase_at(launch)
    if phase == "data":  # copies to the device, and computations of a collate function
        return "forward"
    return None if phase == "forward" and "GraphLaunch" in launch.name else phase


def busy_on_host(scope: Scope) -> list[Interval]:
    """Return the moments of the steps at which any thread runs an operator or a compiled graph."""
    return scope.moments(e for e in scope.trace.of("cpu_op") if _OPERATOR.match(e.name) or category_of(e.name))


def _calls(scope: Scope) -> list[Interval]:
    """Return the moments of the steps at which a module is called, if the trace marks calls."""
    return scope.moments(e for e in scope.trace.events if e.name.startswith((MODULE, NAMELESS)))


def computing_on_host(scope: Scope) -> list[Interval]:
    """Return the moments of the steps at which a thread runs an operator that computes or moves data, no collective."""
    return scope.moments(e for e in scope.trace.of("cpu_op") if category_of(e.name) not in ("", "communication"))


def _in_steps(scope: Scope, moments: list[Interval]) -> list[Interval]:
    return scope.rest(scope.rest(moments))
