"""Finds the function object of code that ran.

The search goes through the class of the first argument, the globals of the code, functions that were met before, and,
if
requested, all functions in the process.
"""

from __future__ import annotations

import functools
import gc
import inspect
import types
from collections.abc import Iterator
from typing import Any

from autofuse.fx.trace.own_forward import own_function
from autofuse.fx.trace.reachable import closure_values
from autofuse.fx.trace.twin import original_class
from autofuse.fx.trace.user_code import Execution

_DEPTH = 6  # of decorators


class FunctionsFound:
    """The functions that are known by their code.

    Args:
        made_anew: id of a function created for the trace -> the user's function that it replaces.
    """

    def __init__(self, originals: dict[int, types.FunctionType] | None = None) -> None:
        self._originals = originals or {}
        self._known: dict[int, list[types.FunctionType]] = {}

    def remember(self, value: Any) -> None:
        """Remember a function and the functions that it wraps."""
        for function in wrapped_functions(value):
            known = self._known.setdefault(id(function.__code__), [])
            if function not in known:
                known.append(function)

    def all_known(self) -> Iterator[types.FunctionType]:
        """Yields all functions that are remembered."""
        for functions in self._known.values():
            yield from functions

    def of(self, ran: Execution, everywhere: bool) -> types.FunctionType | None:
        """The function that ran; None if it no longer exists.

        Args:
            ran: the code that ran.
            everywhere: whether to search all functions in the process too.
        """
        found = next((f for f in self._candidates(ran, everywhere) if _has_run(f, ran)), None)
        return self._originals.get(id(found), found)

    def every(self, ran: Execution) -> list[types.FunctionType]:
        """All functions in the process with the code that ran: a definition in a function makes one at each call."""
        return [f for f in gc.get_referrers(ran.code) if isinstance(f, types.FunctionType) and f.__code__ is ran.code]

    def owner(self, ran: Execution) -> tuple[type, str, type] | None:
        """The class whose attribute must stay this function, the attribute's name, and the class that defines it.

        The name is the function's own, or the name of a method that wraps the function. None if there is no such class.
        """
        cls = receiving_class(ran)
        for defining in cls.__mro__:
            for name, value in vars(defining).items():
                has_its_name = name == ran.code.co_name
                if any(f.__code__ is ran.code and (has_its_name or _has_run(f, ran)) for f in wrapped_functions(value)):
                    first = next(c for c in cls.__mro__ if name in vars(c))
                    return (cls if first is defining else defining), name, defining
        return None

    def _candidates(self, ran: Execution, everywhere: bool) -> Iterator[types.FunctionType]:
        owner = self.owner(ran)
        if owner is not None:
            yield from wrapped_functions(vars(owner[2])[owner[1]])
        yield from wrapped_functions(ran.namespace.get(ran.code.co_name))
        yield from self._known.get(id(ran.code), ())
        if everywhere and (ran.code.co_freevars or ran.arguments):
            yield from (f for f in gc.get_referrers(ran.code) if isinstance(f, types.FunctionType))


def receiving_class(ran: Execution) -> type:
    """The class of the object on which a method was called, or the class on which a class method was called."""
    receiver = _receiver(ran)
    return original_class(receiver if isinstance(receiver, type) else type(receiver))


def _receiver(ran: Execution) -> Any:
    """The object on which a method was called: the first argument, also if the method takes `*args`."""
    first = next(iter(ran.arguments.values()), None)
    # A method may be declared as `def f(*args)`: then the receiver is the first item.
    takes_all = not ran.code.co_argcount and ran.code.co_flags & inspect.CO_VARARGS
    return first[0] if takes_all and isinstance(first, tuple) and first else first


def wrapped_functions(value: Any, depth: int = 0) -> Iterator[types.FunctionType]:
    """A function, and the functions that a function, a method, a property or a decorator wraps."""
    if isinstance(value, types.FunctionType):
        value = own_function(value)
        yield value
        if depth < _DEPTH:
            for _, closed in closure_values(value):
                if isinstance(closed, (types.FunctionType, types.MethodType)):
                    yield from wrapped_functions(closed, depth + 1)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from wrapped_functions(part, depth)
    elif isinstance(value, functools.partial):
        yield from wrapped_functions(value.func, depth)
    elif value is not None:
        yield from wrapped_functions(_wrapped_function(value), depth) if depth < _DEPTH else ()


def _wrapped_function(value: Any) -> Any:
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, (functools.cached_property, functools.partialmethod)):
        return value.func
    return value.__wrapped__ if isinstance(value, functools._lru_cache_wrapper) else None


def _has_run(function: types.FunctionType, ran: Execution) -> bool:
    if function.__code__ is not ran.code:
        return False
    closed = dict(closure_values(function))
    return all(name in closed and closed[name] is value for name, value in ran.free.items())
