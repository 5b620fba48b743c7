"""Arithmetic on literals that always ends, and soon: `9 ** 9 ** 9` is a number to Python, and no number to us.

A result that no float holds, or that Python refuses, is None: the code stays as it is written. Knows no graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

LARGEST = 10**300  # no float holds what is far beyond
_BITS = 1024  # no float holds an integer of more


def is_small(number: object) -> bool:
    """Whether a number is one that a float holds, infinite and undefined ones included."""
    return isinstance(number, float) or isinstance(number, int) and -LARGEST <= number <= LARGEST


def power_of(base: float, exponent: float) -> float | None:
    """`base ** exponent`, None where it is too large, complex or undefined."""
    if not is_small(base) or not is_small(exponent):
        return None
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _BITS:
        return None
    return result_of(lambda: base**exponent)


def result_of(compute: Callable[[], object]) -> float | None:
    """What `compute` gives if that is a number of moderate size; what it makes on the way must be small."""
    try:
        result = compute()
    except (ArithmeticError, ValueError):
        return None
    return result if isinstance(result, (int, float)) and is_small(result) else None


def total_of(numbers: Iterable[float]) -> float | None:
    """The sum of numbers that are small each."""
    return result_of(lambda: sum(numbers))


def product_of(numbers: Iterable[float]) -> float | None:
    """The product of numbers that are small each."""
    return result_of(lambda: math.prod(numbers))


def is_close(number: object, other: object, digits: float) -> bool:
    """Whether two numbers are equal to some digits; one that no float holds is close to none."""
    if not isinstance(number, (int, float)) or not isinstance(other, (int, float)):
        return False
    return number == other or is_small(number) and is_small(other) and math.isclose(number, other, rel_tol=digits)
