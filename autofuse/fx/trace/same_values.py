"""Compares values strictly where `==` is too weak: True, 1 and 1.0 are equal under `==`, and so are 0.0 and -0.0.

`==` also ignores the order of a dict. Identical objects are the same without further comparison.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from operator import is_
from typing import Any

_NUMBERS = (bool, int, float, complex)
_CONTAINERS = (tuple, list, deque, set, frozenset, dict)
_SIMPLE = (str, bytes, type(None))


def is_same_value(one: Any, other: Any) -> bool:
    """Returns whether two values have equal types, signs of zero and orders of dicts, at every level of nesting."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):  # a NaN is the same only as the same object
        return bool(one == other) and _signs(one) == _signs(other)
    if isinstance(one, dict):
        return len(one) == len(other) and _are_same(dict.items(one), dict.items(other))
    if isinstance(one, (tuple, list, deque)):
        return len(one) == len(other) and _are_same(one, other)
    if isinstance(one, (set, frozenset)):
        # Equal sets may hold members of other types, {1} == {True}, or zeros of another sign.
        return (
            one == other
            and {(type(v), v) for v in one} == {(type(v), v) for v in other}
            and _have_same_zeros(one, other)
        )
    return bool(one == other)


def holds_same(value: Any, copy: Any) -> bool:
    """Returns whether a container still has the content of `copy`. A guard calls this.

    Usually the two hold identical objects in the same order, which is the fast path.
    """
    if type(value) is not type(copy) and not isinstance(value, type(copy)) or len(value) != len(copy):
        return False
    if isinstance(copy, dict):
        same = all(map(is_, value, copy)) and all(map(is_, dict.values(value), copy.values()))
        return same or _are_same(dict.items(value), copy.items())
    if isinstance(copy, (set, frozenset)):
        return is_same_value(type(copy)(value), copy)
    return all(map(is_, value, copy)) or _are_same(value, copy)


def needs_strict_comparison(value: Any) -> bool:
    """Returns whether a value can equal another one with `==` that has the same type but is not the same value.

    Examples are a zero, which has a sign, a container of numbers, and a dict with more than one key, which has an
    order.
    """
    if isinstance(value, (float, complex)):
        return not value or isinstance(value, complex)
    if isinstance(value, dict):
        return len(value) > 1 or any(map(_can_equal_other_type, (*value, *value.values())))
    return is_container(value) and any(map(_can_equal_other_type, value))


def is_container(value: Any) -> bool:
    """Returns whether a value is a container."""
    return isinstance(value, _CONTAINERS)


def _can_equal_other_type(value: Any) -> bool:
    """Returns whether a value can equal a value of another type."""
    return needs_strict_comparison(value) if is_container(value) else type(value) not in _SIMPLE


def _are_same(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(map(is_same_value, ones, others))


def _signs(value: complex) -> tuple[float, float]:
    return math.copysign(1.0, value.real), math.copysign(1.0, value.imag)


def _have_same_zeros(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Returns whether the zeros among the members have the same signs."""
    return _signed_zeros(one) == _signed_zeros(other)


def _signed_zeros(members: Iterable[Any]) -> set[tuple[type, float, float]]:
    return {(type(v), *_signs(v)) for v in members if isinstance(v, (float, complex)) and not v}
