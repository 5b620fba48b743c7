"""Yields the values that a value leads to: elements, attributes, what functions close over, what methods are bound to.

This file knows Python's values. A snapshot (snapshots.py) follows them to find everything that code may change.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import gc
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.slots import slots

MAX_LENGTH = 10_000
CACHE = functools._lru_cache_wrapper
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_CONTAINERS = (dict, list, set, collections.deque)
_METHOD_WRAPPER: Any = type([].__len__)


class Everything(frozenset[str]):
    """The set of all names, for code that may read any name."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = Everything()


def has_attributes(value: Any) -> bool:
    """Returns whether a value may hold attributes that the user's code sets."""
    if isinstance(value, type):
        return not effects.is_library(value.__module__) and not effects.is_standard(value.__module__)
    if isinstance(value, (types.ModuleType, types.MethodType, types.BuiltinFunctionType)):
        return False
    return hasattr(value, "__dict__") or bool(slots(value))


def is_opaque(value: Any) -> bool:
    """Returns whether a value belongs to Python or a library, so that its attributes are not recorded."""
    kind = type(value)
    return effects.is_library(kind.__module__) or effects.is_standard(kind.__module__) and not isinstance(
        value, (types.SimpleNamespace, dict, list, set, tuple, frozenset, collections.deque, types.FunctionType)
    ) and kind.__module__ not in ("argparse", "types", "typing")  # fmt: skip


def referents(value: Any, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields the values that a value leads to, each with the text that reads it."""
    if isinstance(value, Tensor):
        yield from ((f".{name}", held) for name, held in attributes_of_tensor(value).items())
        return
    if isinstance(value, types.ModuleType):
        if not isinstance(names, Everything):
            yield from _referents_of_module(value, names)
        return
    if isinstance(value, types.MethodType):
        yield "", value.__self__
        if isinstance(value.__func__, CACHE):
            yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield from (("", v) for v in (value.func, value.args, value.keywords))
    elif isinstance(value, weakref.ref):
        yield "()", value()
    elif isinstance(value, WEAK):
        yield "", vars(value)["data"]  # a dict or a set of weak references
    elif isinstance(value, types.FunctionType):
        yield from _referents_of_function(value)
    elif isinstance(value, (types.BuiltinFunctionType, _METHOD_WRAPPER)):
        yield "", value.__self__
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, contextvars.ContextVar):
        yield ".get()", value_of_variable(value, None)
    elif isinstance(value, dict):
        yield from _referents_of_dict(value)
    elif effects.is_array(value):
        yield from (("[...]", v) for v in (value.flat if value.dtype == object else ()))
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from (("[...]", v) for v in list(value)[:MAX_LENGTH])
    if isinstance(value, type) or not is_opaque(value):
        yield from _referents_by_attribute(value, names)
    elif effects.is_library(type(value).__module__):  # a program sets attributes of such objects, too
        yield from _referents_by_attribute(value, names)
    elif is_changed_by_its_methods(type(value)):
        yield from _referents_by_attribute(value, EVERYTHING)
    if _is_written_in_c(value):
        yield from (("", v) for v in gc.get_referents(value) if not isinstance(v, (type, types.ModuleType)))


def is_foreign(function: types.FunctionType) -> bool:
    return effects.is_library(function.__module__) or effects.is_standard(function.__module__)


def _referents_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if is_foreign(function):
        return
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield from ((f".{name}", v) for name, v in closure_values(function))


def closure_values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the free variables of a function with their values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _referents_by_attribute(value: Any, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, enum.Enum):
        yield ".value", value._value_
    if isinstance(value, enum.EnumMeta):
        members: dict[str, Any] = dict(value.__members__)
        yield from ((f".{n}", member) for n, member in members.items())
    if isinstance(value, type):
        if has_attributes(value):
            for cls in value.__mro__:
                if has_attributes(cls):
                    yield from ((f".{n}", v) for n, v in list(vars(cls).items()) if n in names and n[:2] != "__")
        return
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        yield from ((f".{n}", v) for n, v in list(inside.items()) if n in names)
    yield from ((f".{n}", getattr(value, n)) for n in slots(value) if n in names and hasattr(value, n))
    if isinstance(value, nn.Module):
        tables = (value._parameters, value._buffers, value._modules)
        yield from ((f".{n}", v) for t in tables for n, v in t.items() if n in names)
    if type(value).__module__ != "builtins":
        yield "", type(value)


def _is_written_in_c(value: Any) -> bool:
    """Returns whether a value belongs to a class of Python's that has no attributes, such as a view of a dict."""
    known = (*_CONTAINERS, tuple, frozenset, types.FunctionType, types.CodeType, type, weakref.ref)
    standard = effects.is_standard(type(value).__module__) and not isinstance(value, known)
    return standard and not hasattr(value, "__dict__") and not slots(value)


def _referents_of_dict(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, held in list(dict.items(value))[:MAX_LENGTH]:
        yield (f"[{key!r}]" if isinstance(key, (str, int)) else "[...]"), held
        if not isinstance(key, (str, int, float, tuple, type)):  # an object, or a weak reference to one
            yield "[...]", key


def value_of_variable(variable: contextvars.ContextVar[Any], missing: Any) -> Any:
    """Returns the value of a context variable in this context, or else its default, or else `missing`."""
    try:
        return variable.get()
    except LookupError:
        return missing


def attributes_of_tensor(x: Tensor) -> dict[str, Any]:
    """Returns the attributes that a program has set on a tensor."""
    try:
        inside: dict[str, Any] = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return {}
    return {n: v for n, v in inside.items() if not n.startswith("_")}


def is_changed_by_its_methods(cls: type) -> bool:
    """Returns whether code that is not followed may change what an object of this class holds.

    The methods of a Python class whose module only computes are allowed to run: UserDict, ChainMap, SimpleNamespace.
    A thread-local object has no methods. Its attributes are the user's.
    """
    return effects.is_pure_module(cls.__module__) or cls.__module__ == "_thread" and cls.__name__ == "_local"


def _referents_of_module(module: types.ModuleType, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields what a module holds under these names; of a library's modules, only modules and methods."""
    own = not effects.is_library(module.__name__) and not effects.is_standard(module.__name__)
    for name, value in list(vars(module).items()):
        if name in names and (own or isinstance(value, (types.ModuleType, types.MethodType))):
            yield f".{name}", value
