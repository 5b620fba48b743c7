"""Tests that functions, classes and modules are still bound to the names that they were bound to.

Each is one function without arguments, and equal ones are the same: guards that name it are then equal, too.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

from autofuse.fx.trace.own_forward import own_function
from autofuse.torch_private import assumed_constant

_KEPT = 4096
_known: dict[tuple[Any, ...], Callable[[], bool]] = {}


def unreplaced_names(
    namespace: dict[str, Any], held: dict[str, Any], absent: Collection[str] = ()
) -> Callable[[], bool]:
    """Whether names of a namespace have these values, which are equal only to themselves, and others are not there."""
    find = operator.itemgetter(*held) if held else len
    values: Any = tuple(held.values()) if len(held) > 1 else next(iter(held.values()), None)
    lacking = tuple(sorted(absent))

    def unreplaced() -> bool:
        for name in lacking:
            if name in namespace:
                return False
        return not held or bool(find(namespace) == values)

    key = id(namespace), tuple(held), tuple(map(id, held.values())), lacking
    return _shared(key, unreplaced, f"what forward uses of {namespace.get('__name__')} is unreplaced")


def unreplaced_forwards(classes: Iterable[type]) -> Callable[[], bool]:
    """Whether instances of these classes run the forwards that they run now, when nothing is rewritten."""
    pairs = [(cls, own_function(cls.forward)) for cls in dict.fromkeys(classes)]  # type: ignore[attr-defined]

    def unreplaced() -> bool:
        for cls, function in pairs:
            found = cls.forward  # type: ignore[attr-defined]
            if found is not function and own_function(found) is not function:
                return False
        return True

    names = ", ".join(cls.__name__ for cls, _ in pairs)
    key = tuple((id(cls), id(function)) for cls, function in pairs)
    return _shared(key, unreplaced, f"the forward of {names} is unreplaced")


def unreplaced_methods(cls: type, names: Collection[str]) -> Callable[[], bool]:
    """Whether a class has, under these names, the very methods and properties that it has now."""
    find = operator.attrgetter(*names)
    values = find(cls)

    def unreplaced() -> bool:
        return bool(find(cls) == values)

    return _shared(("methods", id(cls), values), unreplaced, f"what forward uses of {cls.__name__} is unreplaced")


def uncleared_cache(function: Any) -> Callable[[], bool]:
    """Whether a cache of functools was neither cleared nor filled any further."""
    misses = function.cache_info().misses

    def uncleared() -> bool:
        return bool(function.cache_info().misses == misses)

    return _shared(("cache", id(function), misses), uncleared, f"the cache of {function} is what it was")


def unreplaced_functions(functions: Iterable[types.FunctionType]) -> Callable[[], bool]:
    """Whether functions have the very code and the very defaults that they have now."""
    kept = [(f, f.__code__, f.__defaults__, f.__kwdefaults__) for f in functions]
    bare = [(f, code) for f, code, defaults, named in kept if defaults is None and named is None]
    rest = [each for each in kept if each[2] is not None or each[3] is not None]

    def unreplaced() -> bool:
        for function, code in bare:
            if function.__code__ is not code:
                return False
        for function, code, defaults, named in rest:
            if (
                function.__defaults__ is not defaults
                or function.__code__ is not code
                or function.__kwdefaults__ is not named
            ):
                return False
        return True

    names = ", ".join(f.__qualname__ for f, *_ in kept)
    key = "functions", *(id(part) for each in kept for part in each)
    return _shared(key, unreplaced, f"the code and the defaults of {names} are unreplaced")


def _shared(key: tuple[Any, ...], test: Callable[[], bool], name: str) -> Callable[[], bool]:
    if key in _known:
        return _known[key]
    if len(_known) > _KEPT:
        _known.clear()
    test.__qualname__ = name
    _known[key] = assumed_constant(test)
    return _known[key]
