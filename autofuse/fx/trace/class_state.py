"""Finds what the user's classes hold besides code: a list of losses, a counter, a generator of random numbers.

A copy of an object, and an object that the code creates, have the same class as the user's objects. So a run that is
not the user's may change what the class holds.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.code_effects import is_user_class
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.twin import CODE, SCALARS, original_class, plain_class

_CODE = (*CODE, property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAX_OBJECTS = 2_000


def class_state(value: Any, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields the attributes in `names` of the classes of `value` and of what it leads to by attributes in `names`.

    Args:
        value: An object, a module, a copy of either, a container or a class.
        names: The attributes that the code reads.
    """
    for cls in _classes_reached(value, names):
        for base in filter(is_user_class, cls.__mro__):
            for name, held in list(vars(base).items()):
                if name in names and name[:2] != "__" and not isinstance(held, (*SCALARS, *_CODE, nn.Module)):
                    yield name, held


def _classes_reached(value: Any, names: Collection[str]) -> list[type]:
    if isinstance(value, type):
        return [value]
    found, seen = [value], {id(value)}
    for each in found:
        for held in _contents_of(each, names):
            if id(held) not in seen and len(found) < _MAX_OBJECTS:
                seen.add(id(held))
                found.append(held)
    classes = (original_class(type(each)) for each in found)
    return list(dict.fromkeys(plain_class(c) if issubclass(c, nn.Module) else c for c in classes))


def _contents_of(value: Any, names: Collection[str]) -> list[Any]:
    """The contents of an object. The reads are not reported to a twin's listener."""
    if isinstance(value, (*SCALARS, *_CODE, Tensor)):
        return []
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, _SEQUENCES):
        return list(value)
    inside = _attributes(value)
    children = inside["_modules"].values() if isinstance(value, nn.Module) else ()
    slotted = {n: _slot(value, n) for n in slots(value) if n in names}
    return [*(v for n, v in (inside | slotted).items() if n in names), *children]


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:  # not set yet
        return None


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found
