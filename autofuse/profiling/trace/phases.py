"""Which part of a training step something belongs to: forward, backward, optimizer, waiting for data.

Knows the host's marks, and follows GPU work to the host's call that launched it.
"""

from __future__ import annotations

import re

from autofuse.ir.operator_categories import category_of
from autofuse.profiling.trace.event_owners import MODULE, NAMELESS
from autofuse.profiling.trace.host_marks import MARKED, PHASES, Phase
from autofuse.profiling.trace.intervals import Interval, difference, union
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

# Dynamo's ranges, users' and our own stand among operators too; operators have a namespace, nodes are Backward.
_OPERATOR = re.compile(r"(?!mod::)(\w+::)+[\w.]+$|\w+Backward\d*$|autograd::engine::evaluate_function")


def host_moments(scope: Scope) -> dict[Phase, list[Interval]]:
    """On a CPU: the moments of each phase within the steps, disjoint.

    Waits for data and the optimizer are torch's own ranges, the backward pass the autograd engine's nodes; the
    forward pass is every other moment at which a module is called or an operator runs, loss included. The Python of a
    module's call belongs to it, as it does where somebody clocks the call.
    """
    found: dict[Phase, list[Interval]] = {}
    taken: list[Interval] = []
    forward = union([*busy_on_host(scope), *_calls(scope)])
    for phase, moments in (*((p, scope.marks.of(p)) for p, _ in MARKED), ("forward", forward)):
        found[phase] = difference(_in_steps(scope, moments), taken)
        taken = union([*taken, *found[phase]])
    return found


def device_moments(scope: Scope) -> tuple[dict[Phase, list[Interval]], list[Interval]]:
    """On a GPU: the moments at which it works for each phase, disjoint; and those for which that cannot be told.

    Work belongs to the phase in which the host launched it. Where kernels of several phases run at once the moment is
    the forward's, else the backward's. Waiting for data is a DataLoader's range in which the GPU runs nothing.
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
    """The phase that some GPU work was launched in; None where the trace does not tell.

    A captured graph is launched by one call whatever is in it, so its call tells only what surrounds it.
    """
    launch = scope.launch_of(work)
    if launch is None:
        return None
    phase = scope.marks.phase_at(launch)
    if phase == "data":  # copies to the device and what a collate function computes there
        return "forward"
    return None if phase == "forward" and "GraphLaunch" in launch.name else phase


def busy_on_host(scope: Scope) -> list[Interval]:
    """The moments of the steps at which any thread runs an operator, or a graph that was compiled."""
    return scope.moments(e for e in scope.trace.of("cpu_op") if _OPERATOR.match(e.name) or category_of(e.name))


def _calls(scope: Scope) -> list[Interval]:
    """The moments of the steps at which a module is called, where the trace marks calls."""
    return scope.moments(e for e in scope.trace.events if e.name.startswith((MODULE, NAMELESS)))


def computing_on_host(scope: Scope) -> list[Interval]:
    """The moments of the steps at which any thread runs an operator that computes or moves data, no collective."""
    return scope.moments(e for e in scope.trace.of("cpu_op") if category_of(e.name) not in ("", "communication"))


def _in_steps(scope: Scope, moments: list[Interval]) -> list[Interval]:
    return scope.rest(scope.rest(moments))
