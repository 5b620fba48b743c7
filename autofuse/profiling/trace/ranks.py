"""Compares the traces of several ranks of one job: who is slow, and who waits for whom.

Clocks of different machines may differ. A collective ends on all its ranks at the same time. So a rank whose event is
longer than that of the rank that comes last has waited for the difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from autofuse.ir.operator_categories import is_collective
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.kernels import communicates
from autofuse.profiling.trace.levels import busy_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.time_shares import communication
from autofuse.profiling.trace.trace import Event
from autofuse.results.profile_parts import Rank

Key = tuple[str, ...]
NOISE = 0.02  # fraction of a step: smaller differences between ranks do not count
_RANK = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)


def ranks_of(scopes: Mapping[int, Scope]) -> tuple[Rank, ...]:
    """Return every rank in order, with the average seconds of one step."""
    waits = waits_of(scopes) or {}
    found = []
    for rank, scope in sorted(scopes.items()):
        alone, exposed = (scope.seconds(length(moments)) for moments in communication(scope))
        found.append(Rank(rank, scope.steps.seconds, alone, exposed, busy_of(scope), waits.get(rank)))
    return tuple(found)


def scopes_by_rank(scopes: Sequence[Scope]) -> tuple[dict[int, Scope], tuple[str, ...]]:
    """Return the scopes by rank, and notes.

    The ranks come from the traces, else from file names. If neither works, they are numbered in the given order, and a
    note says so.
    """
    named = [_RANK.search(scope.trace.name) for scope in scopes]
    for ranks in ([scope.trace.rank for scope in scopes], [int(found[1]) if found else None for found in named]):
        known = [rank for rank in ranks if rank is not None]
        if len(set(known)) == len(scopes):
            return dict(zip(known, scopes, strict=True)), ()
    notes = () if len(scopes) == 1 else ("The traces do not name their ranks: they are numbered in the given order.",)
    return dict(enumerate(scopes)), notes


def waits_of(scopes: Mapping[int, Scope]) -> dict[int, float] | None:
    """Return the seconds of one step that each rank spends in collectives before the last rank comes.

    Collectives are matched by process group and order. The result is None if there are none, or if they do not match,
    because the ranks recorded different steps.
    """
    durations: dict[Key, dict[int, list[int]]] = defaultdict(dict)
    for rank, scope in scopes.items():
        for event in collectives(scope):
            durations[group_of(event)].setdefault(rank, []).append(event.duration)
    shared = {key: found for key, found in durations.items() if len(found) > 1}
    if not shared or any(len({len(found) for found in by_rank.values()}) > 1 for by_rank in shared.values()):
        return None
    waits = dict.fromkeys(scopes, 0)
    for by_rank in shared.values():
        for together in zip(*by_rank.values(), strict=True):
            last = min(together)
            for rank, duration in zip(by_rank, together, strict=True):
                waits[rank] += duration - last
    return {rank: scopes[rank].seconds(waited) for rank, waited in waits.items()}


def notes_of(ranks: Sequence[Rank], world: int | None, shown: int | None = None) -> tuple[str, ...]:
    """Return notes about several ranks: the slowest, the spread, which rank comes last, which are missing.

    shown: the rank whose numbers the profile shows; the slowest if it is None.
    """
    if len(ranks) < 2:
        return (_missing_note(1, world),) if ranks and world and world > 1 else ()
    slow, fast = max(ranks, key=lambda r: r.seconds), min(ranks, key=lambda r: r.seconds)
    said = [_shown_note(slow, fast, slow.rank if shown is None else shown)]
    waiting = [(rank.waiting, rank.rank) for rank in ranks if rank.waiting is not None]
    if waiting:
        which = "Of these, rank" if world and world > len(ranks) else "Rank"
        said.append(_last_note(min(waiting), max(waiting), ranks, which))
    elif any(rank.communication for rank in ranks):
        said.append("Waits between ranks are unknown: the ranks recorded different collectives.")
    return (*said, *([_missing_note(len(ranks), world)] if world and world > len(ranks) else []))


def _shown_note(slow: Rank, fast: Rank, shown: int) -> str:
    """Say which rank's numbers the profile shows, and how much the ranks differ."""
    spread = f"{slow.seconds * 1e3:.4g} ms a step, and the fastest, rank {fast.rank}, {fast.seconds * 1e3:.4g} ms."
    said = "All numbers except those in the table of ranks are of rank"
    if slow.seconds - fast.seconds <= NOISE * slow.seconds:
        equal = f"All ranks take {fast.seconds * 1e3:.4g} to {slow.seconds * 1e3:.4g} ms a step: equal within noise."
        late = ", which the others wait for" if shown != slow.rank else ""
        return f"{said} {shown}{late}. {equal}"
    if shown == slow.rank:
        return f"{said} {shown}, the slowest: {spread}"
    return f"{said} {shown}, which the others wait for. The slowest, rank {slow.rank}, takes {spread}"


def _last_note(least: tuple[float, int], most: tuple[float, int], ranks: Sequence[Rank], which: str) -> str:
    """Say which rank comes last, if the waits differ by more than steps do by chance."""
    step = max(rank.seconds for rank in ranks)
    if most[0] - least[0] <= NOISE * step:
        return (
            f"No rank is clearly the last: in collectives, ranks wait {least[0] * 1e3:.4g} to "
            f"{most[0] * 1e3:.4g} ms for others, in a step of {step * 1e3:.4g} ms."
        )
    exposed = {rank.rank: rank.waiting_exposed for rank in ranks}.get(most[1])
    savable = "" if exposed is None else f", {exposed * 1e3:.4g} ms of it exposed: only that much can be saved"
    return (
        f"{which} {least[1]} tends to come last: in collectives, it waits {least[0] * 1e3:.4g} ms a step for others, "
        f"and rank {most[1]} {most[0] * 1e3:.4g} ms{savable}."
    )


def _missing_note(given: int, world: int | None) -> str:
    return f"The job has {world} ranks, and {given} of their traces {'was' if given == 1 else 'were'} given."


def communication_events(scope: Scope) -> list[Event]:
    """Return all communication between ranks that begins in a step, in order."""
    if scope.has_gpu:
        events = [kernel for kernel in scope.kernels if communicates(kernel.name)]
    else:
        events = [event for event in scope.trace.of("user_annotation") if is_collective(event.name)]
    return [event for event in events if scope.begins(event)]


def collectives(scope: Scope) -> list[Event]:
    """Return `communication_events` without point-to-point messages, which two ranks see differently."""
    return [event for event in communication_events(scope) if not _is_point_to_point(event)]


def _is_point_to_point(event: Event) -> bool:
    collective = event.args.get("Collective name")
    if collective is None and "SendRecv" in event.name:
        return True
    return str(collective or event.name.partition(":")[2]).lower() in ("send", "recv")


def group_of(event: Event) -> Key:
    """Return the process group of a collective, as far as the trace has it."""
    return tuple(str(event.args.get(name, "")) for name in ("Process Group Name", "Process Group Ranks"))
