"""Finds out what a GPU waits for whenever it does not compute in a step. All sets of moments are disjoint.

The order of these questions is the definition:

1. A computing kernel runs (copies within the GPU's memory count, too): nothing is waited for.
2. A collective runs: **communication**, exposed.
3. A copy between the GPU and elsewhere runs, and a launched kernel is pending, or the host is in the copy: **copy**.
4. Nothing runs, and launched work is pending: **event**, unless the time is so short that it is the delay from a launch
  to its start: **latency**.
5. No launched work is pending, so the host decides: it fetches **data**, is in a **host_collective**, in a copy, in an
  **allocation**, or does anything else: **host**.

If the trace has no launches, the host's calls alone answer questions 3 and 4. If it has no host events, the shape of
the gaps does. **untold** is the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from autofuse.profiling.trace.diagnosis.host import Host
from autofuse.profiling.trace.intervals import Interval, difference, intersection, length, union
from autofuse.profiling.trace.kernels import communicates
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

LATENCY = 25_000  # nanoseconds from a launch to its start on an idle GPU: we saw 3 to 20 us
STRETCH = 1_000_000  # nanoseconds without a launch after which the host does something else than dispatch
# The same if the host usually launches far more often. So much Python between two operators would be unusual.
_SHORT_STRETCH, _FAR_LONGER = 300_000, 20
_FROM_HOST = ("HtoD", "HostToDevice", "HOST_TO_DEVICE", "H2D")
_TO_HOST = ("DtoH", "DeviceToHost", "DEVICE_TO_HOST", "D2H")
_BETWEEN = ("PtoP", "PeerToPeer", "P2P")


@dataclass(frozen=True)
class WaitedFor:
    """The moments of the steps by what is waited for; `computing` has the others.

    inferred: the trace has no marks of a data loader. `data` is then the time from the last launch to the copy of a
    batch.
    """

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
    """Return what the GPU of a trace waits for. With several GPUs, only moments at which all of them wait count."""
    computing = scope.moments(w for w in scope.work if computes(w))
    talking = difference(scope.moments(w for w in scope.work if _is_collective(w)), computing)
    copying = difference(scope.moments(w for w in scope.work if _is_copy(w)), union([*computing, *talking]))
    idle = scope.rest(computing, talking, copying)
    queued = _queued_moments(scope, host)
    pending = union([*queued, *host.copying, *host.waiting])
    copy = intersection(copying, pending) if host.has_events else copying
    remaining = union([*idle, *difference(copying, copy)])
    event, latency = _split_by_latency(remaining, queued)
    remaining = difference(remaining, union([*event, *latency]))
    parts: list[list[Interval]] = []
    for moments in (host.data, host.collectives, host.copying, host.allocating):
        parts.append(intersection(remaining, moments))
        remaining = difference(remaining, moments)
    data, collective, staging, allocation = parts
    supplied, pause = _split_pauses(remaining, scope, _shortest_pause(host))
    remaining = difference(remaining, union([*supplied, *pause]))
    has_host = host.has_events
    return WaitedFor(
        computing, talking, union([*copy, *staging]), event, latency, union([*data, *supplied]), collective,
        allocation, pause if has_host else [], remaining if has_host else [],
        [] if has_host else union([*remaining, *pause]),
        bool(supplied) and length(supplied) >= length(data),
    )  # fmt: skip


def computes(work: Event) -> bool:
    """Whether work is a kernel that is not a collective, or a copy or a fill within the GPU's own memory."""
    if work.category == "kernel":
        return not communicates(work.name)
    return not _is_copy(work) and not _is_collective(work)


def _is_collective(work: Event) -> bool:
    if work.category == "kernel":
        return communicates(work.name)
    return any(word in work.name for word in _BETWEEN)


def _is_copy(work: Event) -> bool:
    return work.category == "gpu_memcpy" and any(word in work.name for word in (*_FROM_HOST, *_TO_HOST))


def from_host(work: Event) -> bool:
    """Whether work is a copy to the GPU."""
    return work.category == "gpu_memcpy" and any(word in work.name for word in _FROM_HOST)


def _queued_moments(scope: Scope, host: Host) -> list[Interval]:
    """Return the moments at which something was launched and has not begun."""
    return union((end - host.shift, start) for end, start in host.queued if end - host.shift < start)


def _split_by_latency(idle: Sequence[Interval], queued: Sequence[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Return the idle moments with queued work: those that are too long for a launch, and the others."""
    both = intersection(idle, queued)
    return [m for m in both if m[1] - m[0] > LATENCY], [m for m in both if m[1] - m[0] <= LATENCY]


def _shortest_pause(host: Host) -> int:
    """Return the nanoseconds without a launch that are not dispatch, given how often this host launches."""
    ends = sorted(end for end, _ in host.queued)
    if len(ends) < 2:
        return STRETCH
    usual = int(median(after - before for before, after in pairwise(ends)))
    return min(STRETCH, max(_SHORT_STRETCH, _FAR_LONGER * usual))


def _split_pauses(idle: Sequence[Interval], scope: Scope, shortest: int) -> tuple[list[Interval], list[Interval]]:
    """Return long times without launches: those that end with a copy to the GPU (input preparation), and the rest.

    The rest has no pause shorter than `shortest`. A short gap before a copy does not show that input was prepared.
    """
    supplied: list[Interval] = []
    pause: list[Interval] = []
    starts = [work.start for work in scope.work]
    for moment in idle:
        if moment[1] - moment[0] < shortest:
            continue
        after = bisect_left(starts, moment[1] - LATENCY)
        next_ = scope.work[after] if after < len(starts) and starts[after] <= moment[1] + LATENCY else None
        ended_by_input = next_ is not None and from_host(next_)
        if not ended_by_input:
            pause.append(moment)
        elif moment[1] - moment[0] >= STRETCH:
            supplied.append(moment)
    return supplied, pause
