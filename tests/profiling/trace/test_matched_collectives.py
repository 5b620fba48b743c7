"""Collectives matched across ranks, clocks aligned by them, and the map of ranks and steps, in traces written by
hand.
"""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.matched_collectives import clocks_of, match_collectives, rank_steps_of, waits_in
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.scope import Scope, scope_of
from tests.profiling.trace.building import kernel, step, trace
from tests.profiling.trace.causes import job

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"


def rank(number: int, *collectives: tuple[float, float], since: float = 0, group: str = "0", steps: int = 2) -> Scope:
    """Steps of 100 us. Collectives have these starts and durations, and their clock is `since` us ahead."""
    told = {"name": REDUCE, "stream": 9, "Process_Group_Name": group}
    kernels = [kernel(since + start, took, 24, 512, **told) for start, took in collectives]  # type: ignore[arg-type]
    windows = [step(n, since + 100 * n, 100) for n in range(steps)]
    return scope_of(trace(*windows, *kernels, rank=number, world=2))


def test_the_ends_of_collectives_show_how_far_clocks_differ() -> None:
    scopes = {0: rank(0, (10, 40), (120, 30)), 1: rank(1, (30, 20), (130, 20), since=7_000)}
    matched = match_collectives(scopes)
    assert [waits_in(collective) for collective in matched] == [{0: 20_000, 1: 0}, {0: 10_000, 1: 0}]
    clocks = clocks_of(matched)
    assert (clocks[0].offset, clocks[1].offset, clocks[1].error) == (0, -7_000_000, 0)


def test_a_clock_is_found_through_a_rank_that_shares_collectives_with_both() -> None:
    """0 shares a collective with 1, and 1 with 2. 2 is 3 us ahead of 1, which is 5 us ahead of 0."""
    one = scope_of(trace(
        step(0, 0, 200),
        kernel(25, 10, 24, 512, name=REDUCE, stream=9, Process_Group_Name="a"),
        kernel(65, 10, 24, 512, name=REDUCE, stream=9, Process_Group_Name="b"), rank=1, world=3,
    ))  # fmt: skip
    scopes = {0: rank(0, (20, 10), group="a"), 1: one, 2: rank(2, (68, 10), group="b")}
    clocks = clocks_of(match_collectives(scopes))
    assert [clocks[r].offset for r in range(3)] == [0, -5_000, -8_000]


def test_the_map_has_one_clock_and_the_waits_of_each_step() -> None:
    scopes = {0: rank(0, (10, 40), (120, 30)), 1: rank(1, (30, 20), (130, 20), since=7_000)}
    first, second = rank_steps_of(scopes, match_collectives(scopes))
    assert first.starts == pytest.approx((0, 100e-6)) and second.starts == pytest.approx((0, 100e-6))
    assert first.seconds == pytest.approx((100e-6, 100e-6))
    assert first.waiting == pytest.approx((20e-6, 10e-6)) and second.waiting == (0, 0)


def test_ranks_without_a_common_collective_have_no_map() -> None:
    scopes = {0: rank(0, (10, 40), group="a"), 1: rank(1, (10, 40), group="b")}
    assert match_collectives(scopes) == [] and rank_steps_of(scopes, []) == ()


def test_ranks_that_recorded_different_numbers_do_not_match() -> None:
    assert match_collectives({0: rank(0, (10, 40)), 1: rank(1, (10, 40), (120, 10))}) == []


def test_a_straggler_is_shown_with_what_every_rank_does() -> None:
    profile = profile_of_traces(job(2, "gpu", 4))
    ranks = {rank.rank: rank for rank in profile.ranks}
    assert ranks[2].computing is not None and ranks[0].computing is not None
    assert ranks[2].computing > 1.3 * ranks[0].computing  # its products take twice as long, others as long
    assert ranks[2].waiting == 0 and (ranks[0].waiting_exposed or 0) > 0
    assert len(profile.rank_steps) == 4 and len(profile.rank_steps[0].seconds) == 4
    assert any("are of rank 2, which the others wait for" in note for note in profile.notes)
    (reduced,) = profile.collectives
    assert len(reduced.waiting) == 4 and reduced.waiting[2] == 0 < reduced.waiting[0]
