"""The slots of an object: attributes that lie in no dict; and what lies in neither."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

_POINTER = tuple.__itemsize__  # bytes
_OPEN = frozenset({dict, OrderedDict, defaultdict, list, tuple, set, frozenset, deque, int, float, complex, str, bytes})


def slots(value: Any) -> list[str]:
    """The names of the slots of an object."""
    if isinstance(value, (type, types.FunctionType)):
        return []
    own = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    return [n for c in own for n, m in vars(c).items() if type(m) is types.MemberDescriptorType and n[:2] != "__"]


def has_hidden_state(cls: type) -> bool:
    """Whether objects of a class hold more than attributes and elements: what C keeps, as in ctypes' numbers."""
    base = cls.__base__
    while base is not None:
        added = sum(type(m) is types.MemberDescriptorType for m in vars(cls).values())
        added += bool(cls.__weakrefoffset__ and not base.__weakrefoffset__) + bool(cls.__dictoffset__)
        if cls.__basicsize__ > base.__basicsize__ + added * _POINTER:
            return cls not in _OPEN
        cls, base = base, base.__base__
    return False
