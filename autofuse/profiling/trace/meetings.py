"""Collectives of several ranks' traces, matched: the same one on every rank. Clocks are aligned by them.

A collective ends for all its ranks at the same time, or nearly: so the ends tell how far apart the clocks of machines
are, and a rank that is in one for longer than the last to come has waited by so much. Collectives are matched by
process group and order; a group of which ranks recorded different numbers of them is left out.
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

Meeting = Mapping[int, Event]  # one collective: by rank, its event there


@dataclass(frozen=True)
class Clock:
    """offset: nanoseconds to add to a rank's times. error: how far ends of collectives are from the reference's then,
    at the median; nanoseconds."""

    offset: int
    error: float


def meetings_of(scopes: Mapping[int, Scope]) -> list[Meeting]:
    """Every collective that at least two ranks recorded."""
    by_key: dict[Key, dict[int, list[Event]]] = defaultdict(dict)
    for rank, scope in scopes.items():
        for event in collectives(scope):
            by_key[group_of(event)].setdefault(rank, []).append(event)
    found: list[Meeting] = []
    for by_rank in by_key.values():
        if len(by_rank) > 1 and len({len(events) for events in by_rank.values()}) == 1:
            found += [dict(zip(by_rank, each, strict=True)) for each in zip(*by_rank.values(), strict=True)]
    return found


def waits_in(meeting: Meeting) -> dict[int, int]:
    """Nanoseconds that each rank waits before the last has come."""
    shortest = min(event.duration for event in meeting.values())
    return {rank: event.duration - shortest for rank, event in meeting.items()}


def clocks_of(meetings: Sequence[Meeting]) -> dict[int, Clock]:
    """Each rank's clock against that of the first rank it meets, directly or through others; those only that meet."""
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for meeting in meetings:
        for one in meeting:
            for other in meeting:
                if one != other:
                    ends[one, other].append(meeting[one].end - meeting[other].end)
    ranks = sorted({rank for meeting in meetings for rank in meeting})
    clocks: dict[int, Clock] = {}
    for first in ranks:
        clocks.setdefault(first, Clock(0, 0.0))
        reached = [first]
        while reached:
            known = reached.pop(0)
            for rank in ranks:
                if rank not in clocks and (known, rank) in ends:
                    clocks[rank] = _against(ends[known, rank], clocks[known])
                    reached.append(rank)
    return clocks


def _against(later: Sequence[int], known: Clock) -> Clock:
    middle = median(later)
    return Clock(round(middle) + known.offset, median(abs(x - middle) for x in later) + known.error)


def rank_steps_of(scopes: Mapping[int, Scope], meetings: Sequence[Meeting]) -> tuple[RankSteps, ...]:
    """The map of ranks and steps; empty where ranks do not meet, or their steps are not marked one by one."""
    clocks = clocks_of(meetings)
    if len(scopes) < 2 or set(clocks) != set(scopes):
        return ()
    if any(scope.steps.count != len(scope.steps.windows) for scope in scopes.values()):
        return ()
    waited = {rank: [0] * len(scope.steps.windows) for rank, scope in scopes.items()}
    for meeting in meetings:
        for rank, nanoseconds in waits_in(meeting).items():
            if (at := scopes[rank].step_at(meeting[rank].start)) is not None:
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
