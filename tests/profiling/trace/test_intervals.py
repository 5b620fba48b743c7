"""Sets of moments: each operation is compared with the same on sets of single moments."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autofuse.profiling.trace.intervals import Interval, IntervalLookup, difference, intersection, length, union

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def moments(intervals: list[Interval]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def is_a_set(intervals: list[Interval]) -> bool:
    inside = all(start < end for start, end in intervals)
    return inside and all(one[1] < other[0] for one, other in pairwise(intervals))


def test_a_union_joins_what_overlaps_or_touches_and_drops_what_is_empty() -> None:
    assert union([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]) == [(0, 3), (5, 9)]


def test_a_difference_may_cut_one_interval_into_several() -> None:
    assert difference([(0, 10), (12, 20)], [(2, 3), (5, 13), (19, 30)]) == [(0, 2), (3, 5), (13, 19)]


@given(INTERVALS, INTERVALS)
def test_sets_of_intervals_are_sets_of_moments(some: list[Interval], others: list[Interval]) -> None:
    one, other = union(some), union(others)
    assert is_a_set(one)
    assert moments(one) == moments(some)
    assert length(one) == len(moments(one))
    assert moments(intersection(one, other)) == moments(one) & moments(other)
    assert moments(difference(one, other)) == moments(one) - moments(other)
    assert is_a_set(intersection(one, other)) and is_a_set(difference(one, other))


@given(INTERVALS, st.integers(0, 40), st.integers(0, 40))
def test_asking_for_a_moment_or_a_part_finds_what_a_walk_finds(some: list[Interval], start: int, end: int) -> None:
    within = IntervalLookup(some)
    assert (start in within) == (start in moments(some))
    assert moments(within.of(start, end)) == moments(some) & set(range(start, end))
    assert within.length(start, end) == len(moments(some) & set(range(start, end)))
