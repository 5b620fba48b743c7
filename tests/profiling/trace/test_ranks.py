"""Several traces of one job."""

from __future__ import annotations

from dataclasses import replace

from autofuse.profiling.trace.ranks import notes_of, ranks_of, scopes_by_rank, waits_of
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.results.profile_parts import Rank
from tests.profiling.trace.building import kernel, step, trace

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank(
    number: int | None, length: float, *collectives: tuple[float, float], since: float = 0, world: int = 2
) -> Scope:
    """One step. The clock of a rank may be `since` ahead."""
    told = {} if number is None else {"rank": number, "world": world}
    kernels = [kernel(since + start, duration, 24, 512, name=REDUCE, stream=9) for start, duration in collectives]
    return scope_of(trace(step(1, since, length), kernel(since, 10), *kernels, **told))


def test_the_first_rank_in_a_collective_waits_for_the_last() -> None:
    """Rank 1 is 30 late to the first collective and 5 early to the second. Its clock is 7 seconds ahead."""
    scopes = {0: rank(0, 200, (20, 40), (100, 10)), 1: rank(1, 200, (50, 10), (95, 15), since=7_000_000)}
    waits = waits_of(scopes)
    assert waits is not None
    assert {number: round(seconds * 1e6, 6) for number, seconds in waits.items()} == {0: 30, 1: 5}


def test_ranks_that_recorded_different_collectives_cannot_be_matched() -> None:
    assert waits_of({0: rank(0, 200, (20, 40)), 1: rank(1, 200, (20, 40), (80, 5))}) is None


def test_process_groups_are_matched_separately() -> None:
    def grouped(first: float, second: float) -> Scope:
        kernels = [kernel(at, took, 24, 512, name=REDUCE, Process_Group_Name=name)
                   for name, at, took in (("tp", 20, first), ("dp", 60, second))]  # fmt: skip
        return scope_of(trace(step(1, 0, 100), *kernels))

    waits = waits_of({0: grouped(10, 30), 1: grouped(20, 5)})
    assert waits is not None
    assert {number: round(seconds * 1e6, 6) for number, seconds in waits.items()} == {0: 25, 1: 10}


def test_every_rank_has_its_numbers() -> None:
    """For 5, the collective of rank 0 overlaps with the kernel from 0 to 10."""
    slow, fast = ranks_of({1: rank(1, 100, (20, 30)), 0: rank(0, 200, (5, 40))})
    assert (slow.rank, round(slow.seconds * 1e6, 6), slow.busy) == (0, 200, 0.225)
    assert slow.communication is not None and slow.exposed is not None and fast.busy == 0.4
    assert (round(slow.communication * 1e6, 6), round(slow.exposed * 1e6, 6)) == (40, 35)
    assert (slow.waiting is not None and round(slow.waiting * 1e6, 6), fast.waiting) == (10, 0)


def test_traces_are_numbered_by_the_rank_in_the_trace() -> None:
    scopes, notes = scopes_by_rank([rank(1, 100), rank(0, 100)])
    assert list(scopes) == [1, 0] and notes == ()


def test_files_that_are_named_by_rank_are_numbered_so() -> None:
    scopes = [scope_of(replace(rank(None, 100).trace, name=f"rank-{n}.Jul_15.pt.trace.json.gz")) for n in (7, 3)]
    assert list(scopes_by_rank(scopes)[0]) == [7, 3]


def test_traces_without_distinct_ranks_are_numbered_in_their_order() -> None:
    for some in ([rank(None, 100), rank(None, 100)], [rank(0, 100), rank(0, 100)]):
        scopes, notes = scopes_by_rank(some)
        assert list(scopes) == [0, 1] and "numbered in the given order" in notes[0]


def test_notes_name_the_slowest_the_last_and_the_missing() -> None:
    said = notes_of(ranks_of({0: rank(0, 200, (5, 40)), 1: rank(1, 100, (20, 30))}), 4)
    assert "of rank 0, the slowest: 0.2 ms" in said[0]
    assert said[1].startswith("Of these, rank 1 tends to come last")
    assert said[2] == "The job has 4 ranks, and 2 of their traces were given."
    assert notes_of(ranks_of({0: rank(0, 200)}), None) == ()


def test_the_last_rank_is_named_only_beyond_noise() -> None:
    """0.015 against 0.147 ms of a step of 130 ms is chance."""
    ranks = [Rank(0, 0.13, 0.02, 0.01, 0.9, 0.015e-3), Rank(1, 0.13, 0.02, 0.01, 0.9, 0.147e-3)]
    assert "No rank is clearly the last" in notes_of(ranks, 2)[1]
    late = [Rank(0, 0.13, 0.02, 0.01, 0.9, 0.015e-3), Rank(1, 0.13, 0.02, 0.01, 0.9, 0.02, 0.005)]
    assert "rank 1 20 ms, 5 ms of it exposed: only that much can be saved." in notes_of(late, 2)[1]
    assert notes_of(late, 2)[1].startswith("Rank 0 tends to come last")
