"""Computes how much of the collectives' time is waiting for other ranks, and for which rank.

A collective ends on all its ranks at once. So a rank whose event is longer than that of the rank that comes last has
waited for the difference, at the beginning of the event. Only the part during which no computing kernel runs is exposed
and can be saved. If there is one rank's trace only, it is compared with the shortest collective of the same kind and
size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofuse.profiling.trace.intervals import Interval, intersection, length, union
from autofuse.profiling.trace.matched_collectives import match_collectives, waits_in
from autofuse.profiling.trace.ranks import collectives, group_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.time_shares import communication
from autofuse.profiling.trace.trace import Event, integer

_LEAST = 4  # with fewer collectives of one kind and size, their shortest is no reference


@dataclass(frozen=True)
class RankWait:
    """Seconds of one step that a rank waits in collectives for the last rank: the hidden and the exposed part."""

    hidden: float = 0.0
    exposed: float = 0.0


@dataclass(frozen=True)
class Waits:
    """The waits of a job's ranks.

    ranks: the waits of each rank.
    last: the rank that the others wait for; None if it varies.
    blame: the fraction of the exposed waits that one rank causes, the largest of all ranks.
    """

    ranks: Mapping[int, RankWait] = field(default_factory=dict)
    last: int | None = None
    blame: float = 0.0


def waits_of_job(scopes: Mapping[int, Scope]) -> Waits | None:
    """Return the waits of a job; None if the ranks' collectives cannot be matched, or if there is only one rank."""
    matched = match_collectives(scopes)
    if not matched:
        return None
    exposed = {rank: communication(scope)[1] for rank, scope in scopes.items()}
    waited: dict[int, list[Interval]] = {rank: [] for rank in scopes}
    total, blame = Counter[int](), Counter[int]()
    for collective in matched:
        waits = waits_in(collective)
        late = next(rank for rank, nanoseconds in waits.items() if not nanoseconds)
        for rank, nanoseconds in waits.items():
            moment = (collective[rank].start, collective[rank].start + nanoseconds)
            waited[rank].append(moment)
            total[rank] += nanoseconds
            blame[late] += length(intersection(union([moment]), exposed[rank]))
    ranks = {}
    for rank, scope in scopes.items():
        exposed_wait = length(intersection(union(waited[rank]), exposed[rank]))
        ranks[rank] = RankWait(scope.seconds(max(0, total[rank] - exposed_wait)), scope.seconds(exposed_wait))
    return Waits(ranks, *_rank_that_comes_last(blame, len(scopes)))


def _rank_that_comes_last(blame: Counter[int], ranks: int) -> tuple[int | None, float]:
    """Return the rank that causes most of the waiting, and its fraction of the waiting.

    The rank is None if its fraction is no larger than chance explains.
    """
    whole = sum(blame.values())
    if not whole:
        return None, 0.0
    rank, most = blame.most_common(1)[0]
    share = most / whole
    # By chance, each rank causes 1 / ranks of the waiting.
    return (rank if share > max(0.5, 1.5 / ranks) else None), share


def waits_of_one(scope: Scope) -> float:
    """Return the seconds of a step that one rank's exposed collectives exceed the shortest equal ones."""
    by_key: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for event in collectives(scope):
        if size_of(event) is not None:
            by_key[(*group_of(event), event.name, str(size_of(event)))].append(event)
    exposed = communication(scope)[1]
    waited: list[Interval] = []
    for events in by_key.values():
        if len(events) >= _LEAST:
            waited += _waits_beyond_shortest(events)
    return scope.seconds(length(intersection(union(waited), exposed)))


def _waits_beyond_shortest(events: Sequence[Event]) -> list[Interval]:
    shortest = min(event.duration for event in events)
    return [(event.start, event.end - shortest) for event in events]


def size_of(event: Event) -> int | None:
    """Return the bytes that a rank puts into a collective, from Kineto's fields for NCCL; None without them."""
    count, kind = integer(event.args.get("In msg nelems")), str(event.args.get("dtype", ""))
    return None if count is None else count * _BYTES.get(kind, 4)


_BYTES = {
    "BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
