"""The time of each rank in each step, and how much of it the rank waits."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.rank_steps import with_steps
from autofuse.profiling.trace.ranks import ranks_of
from autofuse.profiling.trace.scope import Scope, scope_of
from tests.profiling.trace.building import kernel, launch, step, trace


def scopes(steps: int = 3, late: int = 1) -> dict[int, Scope]:
    """Two ranks; rank 1 comes 300 microseconds late to the collective of the step `late`."""
    found = {}
    for rank in range(2):
        entries = []
        for number in range(steps):
            at = number * 2000.0
            waits = 300.0 if number == late and rank == 0 else 0.0
            entries += [step(number, at, 1900), launch(number + 1, at + 10)]
            start = at + 400 - waits
            entries += [kernel(start, 100 + waits, name="ncclDevKernel_AllReduce", correlation=number + 1)]
        found[rank] = scope_of(trace(*entries))
    return found


def test_only_the_rank_that_waits_waits_and_only_in_that_step() -> None:
    found = scopes()
    ranks = with_steps(ranks_of(found), found)
    assert [rank.steps for rank in ranks] == [pytest.approx((1.9e-3,) * 3)] * 2
    assert ranks[0].step_waiting == pytest.approx((0.0, 3e-4, 0.0)) and ranks[1].step_waiting == (0.0, 0.0, 0.0)
    assert sum(ranks[0].step_waiting) / 3 == pytest.approx(ranks[0].waiting)


def test_ranks_that_recorded_different_steps_are_left_alone() -> None:
    found = {0: scopes(3)[0], 1: scopes(2)[1]}
    ranks = ranks_of(found)
    assert with_steps(ranks, found) == ranks
