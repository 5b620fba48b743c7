"""What each rank does in each step: how long the step is, and how much of it the rank waits for other ranks.

A collective ends for all its ranks at the same time, so a rank that is in it for longer than the last one to join has
waited for the difference. Matches collectives by process group and order, as `ranks.waits_of` does. No clocks of
different machines are compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autofuse.profiling.trace.ranks import Key, collectives, group_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event
from autofuse.results.profile_parts import Rank


def with_steps(ranks: Sequence[Rank], scopes: Mapping[int, Scope]) -> tuple[Rank, ...]:
    """The ranks with `steps`, seconds of each step in order, and `step_waiting`, seconds of it that they wait.

    Unchanged if a trace does not mark its steps one by one, or if ranks recorded different numbers of steps: then no
    column would compare the same step.
    """
    counts = {scope.steps.count for scope in scopes.values()}
    marked = all(scope.steps.count == len(scope.steps.windows) for scope in scopes.values())
    if len(ranks) < 2 or len(counts) != 1 or not marked:
        return tuple(ranks)
    waits = _step_waits(scopes)
    return tuple(
        replace(
            rank,
            steps=tuple((end - start) * 1e-9 for start, end in scopes[rank.rank].steps.windows),
            step_waiting=waits.get(rank.rank, ()),
        )
        for rank in ranks
    )


def _step_waits(scopes: Mapping[int, Scope]) -> dict[int, tuple[float, ...]]:
    """Seconds that each rank waits, step by step; empty if the ranks' collectives do not match."""
    groups: dict[Key, dict[int, list[Event]]] = defaultdict(dict)
    for rank, scope in scopes.items():
        for event in collectives(scope):
            groups[group_of(event)].setdefault(rank, []).append(event)
    shared = [by_rank for by_rank in groups.values() if len(by_rank) > 1]
    if not shared or any(len({len(events) for events in by_rank.values()}) > 1 for by_rank in shared):
        return {}
    waits = {rank: [0] * scope.steps.count for rank, scope in scopes.items()}
    for by_rank in shared:
        for together in zip(*by_rank.values(), strict=True):
            last = min(event.duration for event in together)
            for rank, event in zip(by_rank, together, strict=True):
                waits[rank][_step_at(scopes[rank], event.start)] += event.duration - last
    return {rank: tuple(wait * 1e-9 for wait in by_step) for rank, by_step in waits.items()}


def _step_at(scope: Scope, moment: int) -> int:
    """The index of the step in which a moment lies; the moment is at or after the beginning of the first step."""
    return max(0, bisect_right([start for start, _ in scope.steps.windows], moment) - 1)
