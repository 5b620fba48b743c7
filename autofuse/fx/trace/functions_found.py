"""The function objects to code that ran: found in the class of its first argument, in its globals, among functions that
were met on the way, and else among all that Python keeps."""

from __future__ import annotations

import functools
import gc
import inspect
import types
from collections.abc import Iterator
from typing import Any

from autofuse.fx.trace.own_forward import own_function
from autofuse.fx.trace.snapshots import closure_values
from autofuse.fx.trace.twin import original_class
from autofuse.fx.trace.user_code import Execution

_DEPTH = 6  # of decorators


class FunctionsFound:
    """Functions by their code. `made_anew`: functions of the run itself, by id, and the user's that they stand for."""

    def __init__(self, made_anew: dict[int, types.FunctionType] | None = None) -> None:
        self._made_anew = made_anew or {}
        self._met: dict[int, list[types.FunctionType]] = {}

    def know(self, value: Any) -> None:
        """Remember a function, and those that it wraps."""
        for function in unwrapped(value):
            known = self._met.setdefault(id(function.__code__), [])
            if function not in known:
                known.append(function)

    def of(self, ran: Execution, everywhere: bool) -> types.FunctionType | None:
        """The function that ran; None where there is none any more. `everywhere`: among all that Python keeps, too."""
        found = next((f for f in self._candidates(ran, everywhere) if _is_it(f, ran)), None)
        return self._made_anew.get(id(found), found)

    def owner(self, ran: Execution) -> tuple[type, str, type] | None:
        """The class that must have the function under a name, that name, and the class that defines it.

        The name is the function's own, or that of a method which it was put around.
        """
        cls = receiving_class(ran)
        for defining in cls.__mro__:
            for name, held in vars(defining).items():
                named = name == ran.code.co_name
                if any(f.__code__ is ran.code and (named or _is_it(f, ran)) for f in unwrapped(held)):
                    resolved = next(c for c in cls.__mro__ if name in vars(c))
                    return (cls if resolved is defining else defining), name, defining
        return None

    def _candidates(self, ran: Execution, everywhere: bool) -> Iterator[types.FunctionType]:
        owner = self.owner(ran)
        if owner is not None:
            yield from unwrapped(vars(owner[2])[owner[1]])
        yield from unwrapped(ran.namespace.get(ran.code.co_name))
        yield from self._met.get(id(ran.code), ())
        if everywhere and (ran.code.co_freevars or ran.arguments):
            yield from (f for f in gc.get_referrers(ran.code) if isinstance(f, types.FunctionType))


def receiving_class(ran: Execution) -> type:
    """The class of what a method was called on, or the class itself that it was called on."""
    receiver = _receiver(ran)
    return original_class(receiver if isinstance(receiver, type) else type(receiver))


def _receiver(ran: Execution) -> Any:
    """What a method was called on; among all arguments where it takes them as they come."""
    first = next(iter(ran.arguments.values()), None)
    takes_all = not ran.code.co_argcount and ran.code.co_flags & inspect.CO_VARARGS
    return first[0] if takes_all and isinstance(first, tuple) and first else first


def unwrapped(value: Any, depth: int = 0) -> Iterator[types.FunctionType]:
    """A function, and the functions that it, a method, a property or a decorator wraps."""
    if isinstance(value, types.FunctionType):
        value = own_function(value)
        yield value
        if depth < _DEPTH:
            for _, closed in closure_values(value):
                if isinstance(closed, (types.FunctionType, types.MethodType)):
                    yield from unwrapped(closed, depth + 1)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from unwrapped(part, depth)
    elif isinstance(value, functools.partial):
        yield from unwrapped(value.func, depth)
    elif value is not None:
        yield from unwrapped(_wrapped(value), depth) if depth < _DEPTH else ()


def _wrapped(value: Any) -> Any:
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, (functools.cached_property, functools.partialmethod)):
        return value.func
    return value.__wrapped__ if isinstance(value, functools._lru_cache_wrapper) else None


def _is_it(function: types.FunctionType, ran: Execution) -> bool:
    if function.__code__ is not ran.code:
        return False
    closed = dict(closure_values(function))
    return all(name in closed and closed[name] is value for name, value in ran.free.items())
