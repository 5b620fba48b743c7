"""Matches the collectives of several ranks' traces, and aligns the ranks' clocks by them.

A collective ends on all its ranks at about the same time. So the ends show how far the clocks of machines differ, and a
rank whose event is longer than that of the rank that comes last has waited for the difference. Collectives are matched
by process group and order. A group is left out if its ranks recorded different numbers of collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autofuse.profiling.trace.ranks import Key, collectives, group_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event
from autofuse.results.profile_parts import RankSteps

MatchedCollective = Mapping[int, Event]  # one collective: its event on each rank


@dataclass(frozen=True)
class Clock:
    """The clock of a rank.

    offset: nanoseconds to add to the rank's times.
    error: the median distance of the ends of collectives from those of the reference after that, nanoseconds.
    """

    offset: int
    error: float


def match_collectives(scopes: Mapping[int, Scope]) -> list[MatchedCollective]:
    """Return every collective that at least two ranks recorded."""
    by_key: dict[Key, dict[int, list[Event]]] = defaultdict(dict)
    for rank, scope in scopes.items():
        for event in collectives(scope):
            by_key[group_of(event)].setdefault(rank, []).append(event)
    found: list[MatchedCollective] = []
    for by_rank in by_key.values():
        if len(by_rank) > 1 and len({len(events) for events in by_rank.values()}) == 1:
            found += [dict(zip(by_rank, each, strict=True)) for each in zip(*by_rank.values(), strict=True)]
    return found


def waits_in(collective: MatchedCollective) -> dict[int, int]:
    """Return the nanoseconds that each rank waits for the last rank."""
    shortest = min(event.duration for event in collective.values())
    return {rank: event.duration - shortest for rank, event in collective.items()}


def clocks_of(matched: Sequence[MatchedCollective]) -> dict[int, Clock]:
    """Return the clocks of all ranks in `matched`, relative to the first rank that each is connected with.

    Two ranks are connected if they share a collective, directly or through other ranks.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for collective in matched:
        for one in collective:
            for other in collective:
                if one != other:
                    ends[one, other].append(collective[one].end - collective[other].end)
    ranks = sorted({rank for collective in matched for rank in collective})
    clocks: dict[int, Clock] = {}
    for first in ranks:
        clocks.setdefault(first, Clock(0, 0.0))
        queue = [first]
        while queue:
            known = queue.pop(0)
            for rank in ranks:
                if rank not in clocks and (known, rank) in ends:
                    clocks[rank] = _relative_clock(ends[known, rank], clocks[known])
                    queue.append(rank)
    return clocks


def _relative_clock(later: Sequence[int], known: Clock) -> Clock:
    middle = median(later)
    return Clock(round(middle) + known.offset, median(abs(x - middle) for x in later) + known.error)


def rank_steps_of(scopes: Mapping[int, Scope], matched: Sequence[MatchedCollective]) -> tuple[RankSteps, ...]:
    """Return the map of ranks and steps; empty if ranks share no collective, or if steps are not marked one by one."""
    clocks = clocks_of(matched)
    if len(scopes) < 2 or set(clocks) != set(scopes):
        return ()
    if any(scope.steps.count != len(scope.steps.windows) for scope in scopes.values()):
        return ()
    waited = {rank: [0] * len(scope.steps.windows) for rank, scope in scopes.items()}
    for collective in matched:
        for rank, nanoseconds in waits_in(collective).items():
            if (at := scopes[rank].step_at(collective[rank].start)) is not None:
                waited[rank][at] += nanoseconds
    origin = min(scope.steps.windows[0][0] + clocks[rank].offset for rank, scope in scopes.items())
    return tuple(
        RankSteps(
            rank,
            tuple((start + clocks[rank].offset - origin) * 1e-9 for start, _ in scope.steps.windows),
            tuple((end - start) * 1e-9 for start, end in scope.steps.windows),
            tuple(nanoseconds * 1e-9 for nanoseconds in waited[rank]),
        )
        for rank, scope in sorted(scopes.items())
    )
