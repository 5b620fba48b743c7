"""What can be told of a value by looking at it: whether it is plain, of whom its class is, who answers for its names.

Knows values; must not know guards.
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
IDENTICAL = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)  # equal only to themselves

_COPIES: dict[int, tuple[Any, Any]] = {}
_KEPT = 4096


def copied(value: Any, kind: type) -> Any:
    """A copy to compare a container with; the same one while the container holds the same."""
    known = _COPIES.get(id(value))
    if known is not None and known[0] is value and is_same_value(known[1], kind(value)):
        return known[1]
    if len(_COPIES) > _KEPT:
        _COPIES.clear()
    _COPIES[id(value)] = value, kind(value)
    return _COPIES[id(value)][1]


def is_plain(value: Any) -> bool:
    """Whether a value is immutable, and equal only to what does as well."""
    if isinstance(value, enum.Enum):
        return is_plain(value._value_) and vars(value).keys() <= _OF_MEMBERS
    if isinstance(value, _PLAIN):
        return not getattr(value, "__dict__", None) and not is_users_class(type(value))
    if type(value).__module__ == "torch" and type(value).__name__ in _TORCHS:
        return True
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(map(is_plain, value))
    kind = type(value)
    return kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__setitem__") or _is_atom(kind)


_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_TORCHS = frozenset({"dtype", "device", "layout", "memory_format", "Size", "finfo", "iinfo"})
_ATOMS = frozenset({("decimal", "Decimal"), ("fractions", "Fraction"), ("datetime", "date"), ("datetime", "timedelta"),
                    ("datetime", "datetime"), ("uuid", "UUID"), ("builtins", "range"), ("builtins", "ellipsis"),
                    ("re", "Pattern"), ("pathlib", "PosixPath"), ("builtins", "slice")})  # fmt: skip


def _is_atom(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in _ATOMS


def is_users_class(cls: type) -> bool:
    return not effects.is_library(cls.__module__) and not effects.is_standard(cls.__module__)


def is_idle(value: Any) -> bool:
    """Whether a value of a library's or of Python's is only of use by calling it, which is looked at then."""
    kind = type(value)
    if effects.is_library(kind.__module__) or effects.is_logger(value) or kind.__module__ == "_abc":
        return True
    return isinstance(
        value, (property, staticmethod, classmethod, operator.itemgetter, operator.attrgetter, random.Random)
    )


def is_bound(value: Any) -> bool:
    """Whether a function that is written in C belongs to an object: `table.get`."""
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    return value.__self__ is not None and not isinstance(value.__self__, (types.ModuleType, type))


def lookup(cls: type) -> list[type]:
    """Where an attribute of a class is looked up: in its bases, then in its metaclass."""
    meta: type = type(cls)
    return [*cls.__mro__, *meta.__mro__]


def looks_up_by_itself(cls: type) -> bool:
    """Whether a class answers for names of its own accord."""
    own = [c for c in cls.__mro__ if is_users_class(c)]
    return any(n in vars(c) for c in own for n in ("__getattr__", "__getattribute__"))
