"""Computes what collectives send, and how fast: count, bytes, seconds and bandwidth of each kind, from NCCL's names.

Bandwidths are defined as in nccl-tests. The algorithm bandwidth is size / time. The bus bandwidth multiplies it by the
fraction of the size that crosses a link in a ring: 2 (n-1)/n for an all-reduce, (n-1)/n for the others. The size is the
input of one rank; for an all-gather, the output. With several ranks, the time is that of the rank that comes last,
because the others wait.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from autofuse.profiling.trace.diagnosis.messages import size_of
from autofuse.profiling.trace.matched_collectives import match_collectives, waits_in
from autofuse.profiling.trace.ranks import collectives, group_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event, integer
from autofuse.results.collective_rate import CollectiveRate

_KINDS = ("allreduce", "reducescatter", "allgather", "alltoall", "broadcast", "reduce")


def collective_rates(scopes: Mapping[int, Scope], shown: int) -> tuple[CollectiveRate, ...]:
    """Return the rates of one step by kind and number of ranks, the longest first.

    Args:
        scopes: The scope of each rank.
        shown: The rank whose collectives are listed.
    """
    scope, shortest = scopes[shown], _shortest_durations(scopes)
    events: dict[tuple[str, int | None], list[tuple[Event, int]]] = defaultdict(list)
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    for event in collectives(scope):
        group = group_of(event)
        times = shortest.get(group, ())
        duration = times[seen[group]] if seen[group] < len(times) else event.duration
        seen[group] += 1
        events[_kind(event), integer(event.args.get("Group size"))].append((event, duration))
    waits = _waits_of_ranks(scopes)
    found = [
        replace(_rate(kind, ranks, some, scope), waiting=waits.get((kind, ranks), ()))
        for (kind, ranks), some in events.items()
    ]
    return tuple(sorted(found, key=lambda rate: -rate.seconds))


def _waits_of_ranks(scopes: Mapping[int, Scope]) -> dict[tuple[str, int | None], tuple[float, ...]]:
    """Return, by kind and number of ranks, the seconds of a step that each rank waits for the last one."""
    waited: dict[tuple[str, int | None], Counter[int]] = defaultdict(Counter)
    for collective in match_collectives(scopes):
        one = next(iter(collective.values()))
        waited[_kind(one), integer(one.args.get("Group size"))].update(waits_in(collective))
    ranks = sorted(scopes)
    return {key: tuple(scopes[r].seconds(found[r]) for r in ranks) for key, found in waited.items()}


def _shortest_durations(scopes: Mapping[int, Scope]) -> dict[tuple[str, ...], list[int]]:
    """Return, by process group, the duration of each collective on the rank that comes last.

    Groups are left out if their ranks recorded different numbers of collectives.
    """
    durations: dict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for scope in scopes.values():
        own: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for event in collectives(scope):
            own[group_of(event)].append(event.duration)
        for group, times in own.items():
            durations[group].append(times)
    equal = {group: found for group, found in durations.items() if len({len(times) for times in found}) == 1}
    return {group: [min(together) for together in zip(*found, strict=True)] for group, found in equal.items()}


def _kind(event: Event) -> str:
    for name in (str(event.args.get("Collective name", "")), event.name):
        bare = re.sub(r"[^a-z]", "", name.lower())
        for kind in _KINDS:
            if kind in bare:
                return kind
    return "other"


def _rate(kind: str, ranks: int | None, events: list[tuple[Event, int]], scope: Scope) -> CollectiveRate:
    sizes = [size_of(event) for event, _ in events]
    seconds = scope.seconds(sum(duration for _, duration in events))
    count = len(events) / scope.steps.count
    if any(size is None for size in sizes) or not seconds:
        return CollectiveRate(kind, ranks, count, None, seconds)
    size = sum(size or 0 for size in sizes) / scope.steps.count * (ranks or 1 if kind == "allgather" else 1)
    if kind == "allgather" and not ranks:
        return CollectiveRate(kind, ranks, count, None, seconds)
    rate = size / seconds
    crossings = {"allreduce": 2.0, "broadcast": 0.0, "reduce": 0.0}.get(kind, 1.0)
    fraction = 1.0 if not crossings else crossings * (ranks - 1) / ranks if ranks else None
    return CollectiveRate(kind, ranks, count, size, seconds, rate, None if fraction is None else fraction * rate)
