"""Takes a step's time apart: pieces of it, each with whose it is. On a GPU kernels, on a CPU what holds the thread.

Knows which events count and which wait, and nothing of what becomes of the pieces.
"""

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
    """Nanoseconds, and whose; owner None where it cannot be told. operators: 1, or 0 for what is none itself. begins:
    the moment at which it begins."""

    owner: str | None
    phase: Phase
    time: int
    operators: int
    compiled: bool = False
    kernel: Event | None = None
    begins: int = 0


def calm(steps: Steps) -> Steps:
    """The shorter half of the steps, one of them at least: what other programs did to a step made it longer.

    What a live profile looks at on a machine that it does not have for itself. Steps that are not marked one by one
    stay as they are.
    """
    if steps.count < 2 or steps.count != len(steps.windows):
        return steps
    kept = sorted(steps.windows, key=lambda window: window[1] - window[0])[: (steps.count + 1) // 2]
    shortest = "shortest" if len(kept) == 1 else f"{len(kept)} shortest"
    return replace(steps, windows=tuple(sorted(kept)), count=len(kept), basis=f"the {shortest} of {steps.basis}")


def host_pieces(owned: Sequence[Owned], scope: Scope) -> Iterator[OwnedTime]:
    """What holds the threads that run the model; others (workers that load data, communication) run beside them."""
    threads = _threads_of_model(owned)
    for one in owned:
        if thread_of(one.event) in threads and _counts(one) and scope.begins(one.event):
            owner = _owner(one, scope)
            yield OwnedTime(owner, one.phase, one.own, int(one.computes), one.compiled, begins=one.event.start)


def device_pieces(owned: Sequence[Owned], scope: Scope) -> Iterator[OwnedTime]:
    """The kernels and copies that run within the steps, each its launcher's.

    Joined through the correlation of the launch, else through the operator's "External id"; where a trace has neither
    nobody can be told.
    """
    launches = {correlation(one.event): one for one in owned if one.is_launch}
    operators = {_external(one.event): one for one in owned if one.is_operator}
    launches.pop(0, None)
    operators.pop(None, None)
    for event in scope.work:
        if not (time := scope.nanoseconds(event)):
            continue
        one = launches.get(correlation(event)) or operators.get(_external(event))
        phase: Phase = one.phase if one else "forward"
        begins = scope.within(event)[0][0]
        if communicates(event.name):
            yield OwnedTime(COMMUNICATION, phase, time, 1, begins=begins)
        else:
            owner = _owner(one, scope) if one else None
            yield OwnedTime(owner, phase, time, 1, bool(one and one.compiled), event, begins)


def _owner(one: Owned, scope: Scope) -> str | None:
    """Whose it is; of what runs in no module, what ranks send each other is COMMUNICATION's, and what runs within an
    optimizer's step OPTIMIZER's."""
    if one.owner == OUTSIDE and one.is_operator and is_communication(one.event.name):
        return COMMUNICATION
    if one.owner != OUTSIDE or one.phase != "forward" or scope.marks.phase_at(one.event) != "optimizer":
        return one.owner
    return OPTIMIZER


def _external(event: Event) -> int | None:
    return integer(event.args.get("External id", event.args.get("external id")))


def _threads_of_model(owned: Sequence[Owned]) -> set[Thread]:
    marked = {thread_of(one.event) for one in owned if one.is_call or one.event.name.startswith((NODE, WINDOW))}
    return marked or {thread_of(one.event) for one in owned}


def _counts(one: Owned) -> bool:
    """Within modules and in the backward everything, the Python between operators too. Elsewhere a thread also waits
    and runs what is none of the step's, so there only operators count, and the optimizer.
    """
    if one.event.name.startswith(WINDOW) or one.is_launch:
        return False
    if one.owner != OUTSIDE or one.phase == "backward":
        return True
    return one.is_operator or one.event.name.startswith("Optimizer.")
