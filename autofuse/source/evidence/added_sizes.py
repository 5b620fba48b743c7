"""The size of the numbers that an attention adds to its scores, and of sums, products and mixtures of them.

dropped_rows.py explains the kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

Size = frozenset[str]  # the kinds that the numbers may have; a kind describes all numbers of a tensor
SMALL: Size = frozenset({"small"})
INFINITE: Size = frozenset({"infinite"})
KEPT: Size = frozenset({"kept"})
UNKNOWN: Size = frozenset({"unknown"})

SCALE = 100.0  # a number by which small numbers may be multiplied
LARGEST = 1e5  # float32 numbers of this size are 0.008 apart, so the original code rounds its scores to that, too


def size_of_number(number: float | None) -> Size:
    """The size of a tensor that is filled with `number`; None is an unknown number."""
    if number is None or math.isnan(number):
        return UNKNOWN
    return INFINITE if number == -math.inf else SMALL if abs(number) <= LARGEST else UNKNOWN


def any_of(sizes: Iterator[Size] | Sequence[Size]) -> Size:
    """The size of a value that is one of several."""
    return frozenset[str]().union(*sizes)


def mixture_of(first: Size, second: Size) -> Size:
    """The size of a tensor whose entries come from both: `where(c, first, second)`."""
    return _pairs(first, second, lambda a, b: "unknown" if {a, b} == {"kept", "infinite"} else _lower(a, b))


def sum_of(first: Size, second: Size) -> Size:
    """The size of a sum. Only one term may drop keys with large numbers, and none may drop the key that it keeps."""
    return _pairs(first, second, lambda a, b: "unknown" if "kept" in (a, b) and "small" not in (a, b) else _lower(a, b))


def product_of(first: Size, second: Size) -> Size:
    """The size of a product."""
    return _pairs(first, second, lambda a, b: "small" if a == b == "small" else "unknown")


def _pairs(first: Size, second: Size, combine: Callable[[str, str], str]) -> Size:
    return frozenset("unknown" if "unknown" in (a, b) else combine(a, b) for a in first for b in second)


def _lower(a: str, b: str) -> str:
    return a if b == "small" else b
