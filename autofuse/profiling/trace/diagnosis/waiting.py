"""For what a GPU waits at each moment of a step at which it does not compute. Sets of moments, all of them disjoint.

The order of the questions is the definition:

1. A kernel that computes runs (copies within the GPU's memory compute too): nothing is waited for.
2. A collective runs: **communication**, exposed.
3. A copy between the GPU and elsewhere runs, and a kernel that was launched is still to come, or the host stands in
   the copy: **copy**.
4. Nothing runs, and something that was launched is still to come: **event**, unless the stretch is so short that it is
   the time from a launch to its beginning: **latency**.
5. Nothing was launched, so the host decides: it fetches **data**, stands in a **host_collective**, in a copy, in an
   **allocation**, or does anything else: **host**.

Where the trace does not tell launches, steps 3 and 4 are answered by the host's calls alone, and where it has no host,
by the shape of the gaps: **untold** is what is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.intervals import Interval, difference, intersection, length, union
from autofuse.profiling.trace.kernels import communicates
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

LATENCY = 25_000  # nanoseconds from a launch to its beginning on a GPU that is idle: 3 to 20 us were seen
STRETCH = 1_000_000  # nanoseconds without any launch that are no dispatching: the host does something else
_FROM_HOST = ("HtoD", "HostToDevice", "HOST_TO_DEVICE", "H2D")
_TO_HOST = ("DtoH", "DeviceToHost", "DEVICE_TO_HOST", "D2H")
_BETWEEN = ("PtoP", "PeerToPeer", "P2P")


@dataclass(frozen=True)
class WaitedFor:
    """Moments of the steps by what is waited for; `computing` are the others. inferred: `data` has no marks of a
    loader, and is what comes between the last launch and the copy of a batch."""

    computing: Sequence[Interval]
    communication: Sequence[Interval]
    copy: Sequence[Interval]
    event: Sequence[Interval]
    latency: Sequence[Interval]
    data: Sequence[Interval]
    host_collective: Sequence[Interval]
    allocation: Sequence[Interval]
    pause: Sequence[Interval]
    host: Sequence[Interval]
    untold: Sequence[Interval]
    inferred: bool = False


def waiting_of(scope: Scope, host: Host) -> WaitedFor:
    """What the GPU of a trace waits for. With several GPUs, moments at which all of them wait."""
    computing = scope.moments(w for w in scope.work if computes(w))
    talking = difference(scope.moments(w for w in scope.work if _talks(w)), computing)
    copying = difference(scope.moments(w for w in scope.work if _copies(w)), union([*computing, *talking]))
    idle = scope.rest(computing, talking, copying)
    queued = _queued(scope, host)
    stuck = union([*queued, *host.copying, *host.waiting])
    copy = intersection(copying, stuck) if host.seen else copying
    left = union([*idle, *difference(copying, copy)])
    event, latency = _blocked(left, queued)
    left = difference(left, union([*event, *latency]))
    parts: list[list[Interval]] = []
    for moments in (host.data, host.collectives, host.copying, host.allocating):
        parts.append(intersection(left, moments))
        left = difference(left, moments)
    data, collective, staging, allocation = parts
    supplied, pause = _stretches(left, scope)
    left = difference(left, union([*supplied, *pause]))
    told = host.seen
    return WaitedFor(
        computing, talking, union([*copy, *staging]), event, latency, union([*data, *supplied]), collective,
        allocation, pause if told else [], left if told else [], [] if told else union([*left, *pause]),
        bool(supplied) and length(supplied) >= length(data),
    )  # fmt: skip


def computes(work: Event) -> bool:
    """A kernel that is no collective, or a copy or a fill within the GPU's own memory."""
    if work.category == "kernel":
        return not communicates(work.name)
    return not _copies(work) and not _talks(work)


def _talks(work: Event) -> bool:
    if work.category == "kernel":
        return communicates(work.name)
    return any(word in work.name for word in _BETWEEN)


def _copies(work: Event) -> bool:
    return work.category == "gpu_memcpy" and any(word in work.name for word in (*_FROM_HOST, *_TO_HOST))


def from_host(work: Event) -> bool:
    """A copy to the GPU."""
    return work.category == "gpu_memcpy" and any(word in work.name for word in _FROM_HOST)


def _queued(scope: Scope, host: Host) -> list[Interval]:
    """Moments at which something was launched and has not begun."""
    return union((end - host.shift, start) for end, start in host.queued if end - host.shift < start)


def _blocked(idle: Sequence[Interval], queued: Sequence[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Of the idle moments at which something is queued: those that are too long for a launch, and the others."""
    both = intersection(idle, queued)
    return [m for m in both if m[1] - m[0] > LATENCY], [m for m in both if m[1] - m[0] <= LATENCY]


def _stretches(idle: Sequence[Interval], scope: Scope) -> tuple[list[Interval], list[Interval]]:
    """Long stretches in which the host launches nothing: those that end with a copy to the GPU prepared its input."""
    supplied: list[Interval] = []
    pause: list[Interval] = []
    starts = [work.start for work in scope.work]
    for moment in idle:
        if moment[1] - moment[0] < STRETCH:
            continue
        after = bisect_left(starts, moment[1] - LATENCY)
        next_ = scope.work[after] if after < len(starts) and starts[after] <= moment[1] + LATENCY else None
        ended_by_input = next_ is not None and from_host(next_)
        (supplied if ended_by_input else pause).append(moment)
    return supplied, pause
