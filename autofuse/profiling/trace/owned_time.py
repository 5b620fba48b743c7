"""Splits a step's time into pieces with owners. On a GPU, pieces are kernels; on a CPU, what holds the thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autofuse.profiling.trace.backward_links import NODE, Thread, thread_of
from autofuse.profiling.trace.event_owners import WINDOW, Owned, is_communication
from autofuse.profiling.trace.kernels import communicates
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.steps import Steps, correlation
from autofuse.profiling.trace.trace import Event, integer
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import COMMUNICATION, OPTIMIZER, OUTSIDE


@dataclass(frozen=True, slots=True)
class OwnedTime:
    """A piece of time and its owner.

    owner: None if it is unknown.
    time: nanoseconds.
    operators: 1 for an operator, else 0.
    begins: the moment at which it begins.
    """

    owner: str | None
    phase: Phase
    time: int
    operators: int
    compiled: bool = False
    kernel: Event | None = None
    begins: int = 0


def shorter_half(steps: Steps) -> Steps:
    """Return the shorter half of the steps, at least one. Other programs make steps longer, never shorter.

    Live profiles use it, because they share the machine. Steps that are not marked one by one stay as they are.
    """
    if steps.count < 2 or steps.count != len(steps.windows):
        return steps
    shortest_windows = sorted(steps.windows, key=lambda window: window[1] - window[0])[: (steps.count + 1) // 2]
    label = "shortest" if len(shortest_windows) == 1 else f"{len(shortest_windows)} shortest"
    return replace(
        steps,
        windows=tuple(sorted(shortest_windows)),
        count=len(shortest_windows),
        basis=f"the {label} of {steps.basis}",
    )


def host_pieces(owned: Sequence[Owned], scope: Scope) -> Iterator[OwnedTime]:
    """Yield what holds the threads that run the model. Other threads (data loading, communication) do not count."""
    threads = _threads_of_model(owned)
    for one in owned:
        if thread_of(one.event) in threads and _is_counted(one) and scope.begins(one.event):
            owner = _owner(one, scope)
            yield OwnedTime(owner, one.phase, one.own, int(one.computes), one.compiled, begins=one.event.start)


def device_pieces(owned: Sequence[Owned], scope: Scope) -> Iterator[OwnedTime]:
    """Yield the kernels and copies that run within the steps, with the owner of the call that launched them.

    The launch is found by its correlation id, else the operator by its "External id". If a trace has neither, the owner
    is unknown.
    """
    launches = {correlation(one.event): one for one in owned if one.is_launch}
    operators = {_external_id(one.event): one for one in owned if one.is_operator}
    launches.pop(0, None)
    operators.pop(None, None)
    for event in scope.work:
        if not (time := scope.nanoseconds(event)):
            continue
        one = launches.get(correlation(event)) or operators.get(_external_id(event))
        phase: Phase = one.phase if one else "forward"
        begins = scope.within(event)[0][0]
        if communicates(event.name):
            yield OwnedTime(COMMUNICATION, phase, time, 1, begins=begins)
        else:
            owner = _owner(one, scope) if one else None
            yield OwnedTime(owner, phase, time, 1, bool(one and one.compiled), event, begins)


def _owner(one: Owned, scope: Scope) -> str | None:
    """Return the owner of an event.

    In no module, messages between ranks belong to COMMUNICATION, and an optimizer's step belongs to OPTIMIZER.
    """
    if one.owner == OUTSIDE and one.is_operator and is_communication(one.event.name):
        return COMMUNICATION
    if one.owner != OUTSIDE or one.phase != "forward" or scope.marks.phase_at(one.event) != "optimizer":
        return one.owner
    return OPTIMIZER


def _external_id(event: Event) -> int | None:
    return integer(event.args.get("External id", event.args.get("external id")))


def _threads_of_model(owned: Sequence[Owned]) -> set[Thread]:
    marked = {thread_of(one.event) for one in owned if one.is_call or one.event.name.startswith((NODE, WINDOW))}
    return marked or {thread_of(one.event) for one in owned}


def _is_counted(one: Owned) -> bool:
    """Whether an event counts.

    Within modules and in the backward everything counts, Python included. Elsewhere only operators and the optimizer
    count, because a thread also waits there and runs other code than the step's.
    """
    if one.event.name.startswith(WINDOW) or one.is_launch:
        return False
    if one.owner != OUTSIDE or one.phase == "backward":
        return True
    return one.is_operator or one.event.name.startswith("Optimizer.")
