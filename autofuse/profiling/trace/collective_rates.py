"""What collectives send, and how fast: count, bytes, seconds and bandwidth of each kind. Knows NCCL's names.

Bandwidths are those of nccl-tests: the algorithm's is size / time, the bus's that times the part of the size that
crosses a link in a ring, 2 (n-1)/n for an all-reduce and (n-1)/n for the others. The size is what a rank puts in, and
of an all-gather what it gets. Of several ranks the time is that of the last to come: the others wait meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from autofuse.profiling.trace.diagnosis.messages import size_of
from autofuse.profiling.trace.meetings import meetings_of, waits_in
from autofuse.profiling.trace.ranks import collectives, group_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event, integer
from autofuse.results.collective_rate import CollectiveRate

_KINDS = ("allreduce", "reducescatter", "allgather", "alltoall", "broadcast", "reduce")


def collective_rates(scopes: Mapping[int, Scope], shown: int) -> tuple[CollectiveRate, ...]:
    """Of one step, by kind and number of ranks; those that take longest first. `shown`: the rank whose they are."""
    scope, shortest = scopes[shown], _shortest(scopes)
    events: dict[tuple[str, int | None], list[tuple[Event, int]]] = defaultdict(list)
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    for event in collectives(scope):
        group = group_of(event)
        times = shortest.get(group, ())
        took = times[seen[group]] if seen[group] < len(times) else event.duration
        seen[group] += 1
        events[_kind(event), integer(event.args.get("Group size"))].append((event, took))
    waits = _waits(scopes)
    found = [
        replace(_rate(kind, ranks, some, scope), waiting=waits.get((kind, ranks), ()))
        for (kind, ranks), some in events.items()
    ]
    return tuple(sorted(found, key=lambda rate: -rate.seconds))


def _waits(scopes: Mapping[int, Scope]) -> dict[tuple[str, int | None], tuple[float, ...]]:
    """By kind and number of ranks, seconds of a step that each rank waits for the last to come, in order of ranks."""
    waited: dict[tuple[str, int | None], Counter[int]] = defaultdict(Counter)
    for meeting in meetings_of(scopes):
        one = next(iter(meeting.values()))
        waited[_kind(one), integer(one.args.get("Group size"))].update(waits_in(meeting))
    ranks = sorted(scopes)
    return {key: tuple(scopes[r].seconds(found[r]) for r in ranks) for key, found in waited.items()}


def _shortest(scopes: Mapping[int, Scope]) -> dict[tuple[str, ...], list[int]]:
    """By process group, of each collective the duration of the last rank to come; where ranks recorded the same."""
    durations: dict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for scope in scopes.values():
        mine: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for event in collectives(scope):
            mine[group_of(event)].append(event.duration)
        for group, times in mine.items():
            durations[group].append(times)
    alike = {group: found for group, found in durations.items() if len({len(times) for times in found}) == 1}
    return {group: [min(together) for together in zip(*found, strict=True)] for group, found in alike.items()}


def _kind(event: Event) -> str:
    for name in (str(event.args.get("Collective name", "")), event.name):
        bare = re.sub(r"[^a-z]", "", name.lower())
        for kind in _KINDS:
            if kind in bare:
                return kind
    return "other"


def _rate(kind: str, ranks: int | None, events: list[tuple[Event, int]], scope: Scope) -> CollectiveRate:
    sizes = [size_of(event) for event, _ in events]
    seconds = scope.seconds(sum(took for _, took in events))
    count = len(events) / scope.steps.count
    if any(size is None for size in sizes) or not seconds:
        return CollectiveRate(kind, ranks, count, None, seconds)
    whole = sum(size or 0 for size in sizes) / scope.steps.count * (ranks or 1 if kind == "allgather" else 1)
    if kind == "allgather" and not ranks:
        return CollectiveRate(kind, ranks, count, None, seconds)
    rate = whole / seconds
    crossing = {"allreduce": 2.0, "broadcast": 0.0, "reduce": 0.0}.get(kind, 1.0)
    part = 1.0 if not crossing else crossing * (ranks - 1) / ranks if ranks else None
    return CollectiveRate(kind, ranks, count, whole, seconds, rate, None if part is None else part * rate)
