"""Arithmetic on literals with bounded time and memory. `9 ** 9 ** 9` would take Python minutes and gigabytes.

A result is None if it exceeds the range of a float, or if Python raises an error. The caller then leaves the code
unevaluated. This file knows no graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

LARGEST = 10**300  # somewhat below the largest float, about 1.8e308
_BITS = 1024  # an integer of more bits exceeds the range of a float


def is_small(number: object) -> bool:
    """Whether `number` is a float, inf and nan included, or an integer in the range of a float."""
    return isinstance(number, float) or isinstance(number, int) and -LARGEST <= number <= LARGEST


def power_of(base: float, exponent: float) -> float | None:
    """`base ** exponent`; None if it is too large, complex or undefined."""
    if not is_small(base) or not is_small(exponent):
        return None
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _BITS:
        return None
    return result_of(lambda: base**exponent)


def result_of(compute: Callable[[], object]) -> float | None:
    """The result of `compute`; None if it raises an arithmetic error or exceeds the range of a float.

    Intermediate results are not checked: the caller must make sure that they are small.
    """
    try:
        result = compute()
    except (ArithmeticError, ValueError):
        return None
    return result if isinstance(result, (int, float)) and is_small(result) else None


def total_of(numbers: Iterable[float]) -> float | None:
    """The sum of numbers, each of which is small; None if it is too large."""
    return result_of(lambda: sum(numbers))


def product_of(numbers: Iterable[float]) -> float | None:
    """The product of numbers, each of which is small; None if it is too large."""
    return result_of(lambda: math.prod(numbers))


def is_close(number: object, other: object, digits: float) -> bool:
    """Whether two numbers are equal up to the relative tolerance `digits`. Numbers beyond a float must be equal."""
    if not isinstance(number, (int, float)) or not isinstance(other, (int, float)):
        return False
    return number == other or is_small(number) and is_small(other) and math.isclose(number, other, rel_tol=digits)
