"""Sets of moments as lists of intervals: union, intersection, difference, length. Integers only, so sums are exact.

A *set* is a list of (start, end) pairs in order. No pair is empty, and none touches the next. Apart from sorting, every
function takes time linear in the number of intervals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
Moments = Sequence[Interval]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the set of all moments in any of the intervals, which may be unordered, overlapping or empty."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def intersection(one: Moments, other: Moments) -> list[Interval]:
    """Return the set of moments in both sets."""
    common: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            common.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(one: Moments, other: Moments) -> list[Interval]:
    """Return the set of moments in the first set and not in the second."""
    left: list[Interval] = []
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if start < other[k][0]:
                left.append((start, other[k][0]))
            start = max(start, other[k][1])
            k += 1
        if start < end:
            left.append((start, end))
        j = max(j, k - 1)
    return left


def length(moments: Moments) -> int:
    """Return the total length of the set."""
    return sum(end - start for start, end in moments)


def parts(start: int, end: int, moments: Moments, starts: Sequence[int]) -> list[Interval]:
    """Return the parts of [start, end) that are in the set. `starts` are the set's beginnings, for a binary search."""
    found: list[Interval] = []
    for i in range(max(0, bisect_right(starts, start) - 1), len(moments)):
        if moments[i][0] >= end:
            break
        low, high = max(start, moments[i][0]), min(end, moments[i][1])
        if low < high:
            found.append((low, high))
    return found


class IntervalLookup:
    """A set for many queries: whether it contains a moment, and which parts of an interval it contains."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.moments = union(intervals)
        self._starts = [start for start, _ in self.moments]

    def __contains__(self, moment: int) -> bool:
        i = bisect_right(self._starts, moment) - 1
        return i >= 0 and moment < self.moments[i][1]

    def of(self, start: int, end: int) -> list[Interval]:
        """Return the parts of [start, end) that are in the set."""
        return parts(start, end, self.moments, self._starts)

    def length(self, start: int, end: int) -> int:
        """Return the length of the part of [start, end) that is in the set."""
        return length(self.of(start, end))
