"""Lists the slots of an object, and tells whether an object holds state in neither its slots nor its `__dict__`."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

_POINTER_SIZE = tuple.__itemsize__  # in bytes
_TRANSPARENT = frozenset(
    {dict, OrderedDict, defaultdict, list, tuple, set, frozenset, deque, int, float, complex, str, bytes}
)


def slots(value: Any) -> list[str]:
    """Returns the names of an object's slots."""
    if isinstance(value, (type, types.FunctionType)):
        return []
    own = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    return [n for c in own for n, m in vars(c).items() if type(m) is types.MemberDescriptorType and n[:2] != "__"]


def has_hidden_state(cls: type) -> bool:
    """Returns whether objects of a class hold more than attributes and elements, such as C data of ctypes' numbers."""
    base = cls.__base__
    while base is not None:
        pointers = sum(type(m) is types.MemberDescriptorType for m in vars(cls).values())
        pointers += bool(cls.__weakrefoffset__ and not base.__weakrefoffset__) + bool(cls.__dictoffset__)
        if cls.__basicsize__ > base.__basicsize__ + pointers * _POINTER_SIZE:
            return cls not in _TRANSPARENT
        cls, base = base, base.__base__
    return False
