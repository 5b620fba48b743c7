"""Answers questions about a value: whether it is plain, whether its class is the user's, how its attributes are found.

This file does not use guards.
"""

from __future__ import annotations

import enum
import operator
import random
import types
from typing import Any

from autofuse.fx.trace import effects
from autofuse.fx.trace.same_values import is_same_value

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
IDENTICAL = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)  # compared by identity

_COPIES: dict[int, tuple[Any, Any]] = {}
_MAX_COPIES = 4096


def comparison_copy(value: Any, kind: type) -> Any:
    """Returns a copy to compare a container with: the same object while the container's content is the same."""
    known = _COPIES.get(id(value))
    if known is not None and known[0] is value and is_same_value(known[1], kind(value)):
        return known[1]
    if len(_COPIES) > _MAX_COPIES:
        _COPIES.clear()
    _COPIES[id(value)] = value, kind(value)
    return _COPIES[id(value)][1]


def is_plain(value: Any) -> bool:
    """Returns whether a value is immutable and equal only to values that behave the same."""
    if isinstance(value, enum.Enum):
        return is_plain(value._value_) and vars(value).keys() <= _ENUM_ATTRIBUTES
    if isinstance(value, _PLAIN):
        return not getattr(value, "__dict__", None) and not is_user_class(type(value))
    if type(value).__module__ == "torch" and type(value).__name__ in _TORCH_TYPES:
        return True
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(map(is_plain, value))
    kind = type(value)
    return (
        kind.__module__ == "numpy"
        and hasattr(value, "item")
        and not hasattr(value, "__setitem__")
        or _is_atomic_type(kind)
    )


_ENUM_ATTRIBUTES = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_TORCH_TYPES = frozenset({"dtype", "device", "layout", "memory_format", "Size", "finfo", "iinfo"})
_ATOMIC_TYPES = frozenset({("decimal", "Decimal"), ("fractions", "Fraction"), ("datetime", "date"),
                           ("datetime", "timedelta"), ("datetime", "datetime"), ("uuid", "UUID"), ("builtins", "range"),
                           ("builtins", "ellipsis"), ("re", "Pattern"), ("pathlib", "PosixPath"),
                           ("builtins", "slice")})  # fmt: skip


def _is_atomic_type(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in _ATOMIC_TYPES


def is_user_class(cls: type) -> bool:
    """Returns whether a class belongs neither to Python nor to a library."""
    return not effects.is_library(cls.__module__) and not effects.is_standard(cls.__module__)


_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def is_mutable_class(cls: type) -> bool:
    """Returns whether a program can add attributes to a class. It can, except to those of Python written in C."""
    return not cls.__flags__ & _IMMUTABLE


def matters_only_when_called(value: Any) -> bool:
    """Returns whether a value from a library or from Python only matters when it is called, which is checked then."""
    kind = type(value)
    if effects.is_library(kind.__module__) or effects.is_logger(value) or kind.__module__ == "_abc":
        return True
    return isinstance(
        value, (property, staticmethod, classmethod, operator.itemgetter, operator.attrgetter, random.Random)
    )


def is_bound_builtin(value: Any) -> bool:
    """Returns whether a function written in C belongs to an object: `table.get`."""
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    return value.__self__ is not None and not isinstance(value.__self__, (types.ModuleType, type))


def lookup_classes(cls: type) -> list[type]:
    """Returns the classes in which Python looks up a class's attribute: its bases, then its metaclass's."""
    meta: type = type(cls)
    return [*cls.__mro__, *meta.__mro__]


def has_custom_lookup(cls: type) -> bool:
    """Returns whether a class defines `__getattr__` or `__getattribute__`."""
    own = [c for c in cls.__mro__ if is_user_class(c)]
    return any(n in vars(c) for c in own for n in ("__getattr__", "__getattribute__"))
