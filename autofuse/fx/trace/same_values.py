"""Whether two values are the same to every program, where `==` says too much: True, 1 and 1.0, 0.0 and -0.0 are equal.

Nor does `==` ask for the order of a dict. What is the very same object is told at once.
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
    """Whether two values have the same types, the same signs of zero, and dicts the same order, all the way down."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        return bool(one == other) and _signs(one) == _signs(other)
    if isinstance(one, dict):
        return len(one) == len(other) and _are_same(dict.items(one), dict.items(other))
    if isinstance(one, (tuple, list, deque)):
        return len(one) == len(other) and _are_same(one, other)
    if isinstance(one, (set, frozenset)):
        return one == other and {(type(v), v) for v in one} == {(type(v), v) for v in other} and _zeros(one, other)
    return bool(one == other)


def holds_same(value: Any, copy: Any) -> bool:
    """The guard of a container: whether it holds what `copy` holds, mostly the very same objects in the same order."""
    if type(value) is not type(copy) and not isinstance(value, type(copy)) or len(value) != len(copy):
        return False
    if isinstance(copy, dict):
        same = all(map(is_, value, copy)) and all(map(is_, dict.values(value), copy.values()))
        return same or _are_same(dict.items(value), copy.items())
    if isinstance(copy, (set, frozenset)):
        return is_same_value(type(copy)(value), copy)
    return all(map(is_, value, copy)) or _are_same(value, copy)


def equals_others(value: Any) -> bool:
    """Whether `==` and the type are not enough to tell a value from others: a zero that has a sign, what holds
    numbers, a dict of more than one key, whose order counts."""
    if isinstance(value, (float, complex)):
        return not value or isinstance(value, complex)
    if isinstance(value, dict):
        return len(value) > 1 or any(map(_may_be_another, (*value, *value.values())))
    return is_container(value) and any(map(_may_be_another, value))


def is_container(value: Any) -> bool:
    """Whether a value holds others."""
    return isinstance(value, _CONTAINERS)


def _may_be_another(value: Any) -> bool:
    """Whether something of another type may equal a value."""
    return equals_others(value) if is_container(value) else type(value) not in _SIMPLE


def _are_same(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(map(is_same_value, ones, others))


def _signs(value: complex) -> tuple[float, float]:
    return math.copysign(1.0, value.real), math.copysign(1.0, value.imag)


def _zeros(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether the zeros among members have the same signs."""
    return _signed(one) == _signed(other)


def _signed(members: Iterable[Any]) -> set[tuple[type, float, float]]:
    return {(type(v), *_signs(v)) for v in members if isinstance(v, (float, complex)) and not v}
