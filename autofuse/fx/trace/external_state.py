"""What a forward can keep outside of its module: globals, containers of its file, attributes of functions and classes,
functools' caches.

A run that is not the user's own (on fakes, in double, on copies) must leave nothing there: a cached mask that is a fake
would be found by the next real call. Knows Python's namespaces; knows no graph, and not what a change means.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OTHERS = frozenset({*sys.stdlib_module_names, "torch", "autofuse"}) - {"__main__"}
_DICTS = (dict, OrderedDict, defaultdict)
_MOST_NAMESPACES, _LARGEST, _DEPTH = 64, 10_000, 3
_CACHE = functools._lru_cache_wrapper
_NOTHING = object()
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, _CACHE)


@contextmanager
def unchanged_outside(module: nn.Module) -> Iterator[ExternalState]:
    """Put back what is changed outside of `module` in this block."""
    outside = ExternalState(module)
    try:
        yield outside
    finally:
        outside.restore()


class ExternalState:
    """What lies outside of a module that its forward may reach, as it is now. Caches that hold tensors are emptied."""

    def __init__(self, module: nn.Module) -> None:
        self._before: dict[int, tuple[Any, Any]] = {}  # id of a container -> it, and what it holds
        self._caches: list[Any] = []
        for namespace in _namespaces(frozenset(c for m in module.modules() for c in type(m).__mro__)):
            self._note(namespace, 0)
            for held in _holders(namespace):
                self._note(held, 0)
        self._forget_cached()

    def changes(self) -> Iterator[Any]:
        """The tensors and numbers that were put into containers. Not what functools cached: that is pure."""
        for held, before in self._before.values():
            yield from (new for new in _added(held, before) if _is_kept(new))

    def holds(self, container: Any) -> bool:
        """Whether a container lies there."""
        return id(container) in self._before

    def restore(self) -> None:
        """Take out what `changes` tells, and nothing that another thread may have put there."""
        for held, before in self._before.values():
            if isinstance(held, list):
                if any(map(_is_kept, _added(held, before))):
                    held[:] = before
                continue
            now = _items(held)
            for key in [k for k, v in _pairs(now) if (k not in before or before[k] is not v) and _is_kept(v)]:
                _put(held, key, before.get(key, _NOTHING))
        self._forget_cached()

    def _forget_cached(self) -> None:
        for cache in self._caches:
            if any(_holds_a_tensor(held, 0) for held in gc.get_referents(cache)):
                cache.cache_clear()

    def _note(self, held: Any, depth: int) -> None:
        """Keep what a container holds, and the containers in it."""
        if id(held) in self._before or depth > _DEPTH:
            return
        if isinstance(held, _CACHE):
            self._caches.append(held)
            self._before[id(held)] = held, {}
            return
        items = _items(held)
        if len(items) > _LARGEST:
            return
        self._before[id(held)] = held, list(items) if isinstance(items, list) else dict(_pairs(items))
        for value in items if isinstance(items, list) else [v for _, v in _pairs(items)]:
            if _is_container(value):
                self._note(value, depth + 1)


def _items(held: Any) -> Any:
    """The container itself; the attributes of a function, a class or an object."""
    return held if isinstance(held, (*_DICTS, list)) else vars(held)


def _pairs(held: Any) -> list[tuple[Any, Any]]:
    """Keys and values as they lie there: a dict of the user's may make something at each look."""
    return list(dict.items(held) if isinstance(held, dict) else held.items())


def _is_container(value: Any) -> bool:
    return type(value) in (*_DICTS, list) or isinstance(value, _CACHE)


def _added(held: Any, before: Any) -> list[Any]:
    if isinstance(held, list):
        known = set(map(id, before))
        return [new for new in held if id(new) not in known]
    return [new for key, new in _pairs(_items(held)) if key not in before or before[key] is not new]


def _is_kept(value: Any) -> bool:
    return isinstance(value, (int, float)) or _holds_a_tensor(value, 0)


def _put(held: Any, key: Any, value: Any) -> None:
    """What `held` had under a key, or nothing."""
    named = not isinstance(held, dict)
    if value is _NOTHING:
        delattr(held, key) if named else held.pop(key, None)
    elif named:
        setattr(held, key, value)
    else:
        held[key] = value


def _holds_a_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, Tensor):
        return True
    if depth > _DEPTH:
        return False
    if isinstance(value, (list, tuple, set)):
        return any(_holds_a_tensor(v, depth + 1) for v in value)
    if isinstance(value, dict):
        return any(_holds_a_tensor(v, depth + 1) for v in value.values())
    inside = gc.get_referents(value) if type(value).__name__ == "_lru_list_elem" else ()
    return any(_holds_a_tensor(v, depth) for v in inside if type(v).__name__ != "_lru_list_elem")


# Which namespaces, and what in them keeps something.

_KNOWN: dict[int, tuple[dict[str, Any], int, list[Any]]] = {}  # id -> a namespace, how many names it had, its holders


@functools.lru_cache(maxsize=256)
def _starts(classes: frozenset[type]) -> tuple[str, ...]:
    return tuple(sorted({c.__module__ for c in classes if _top(c.__module__) not in _OTHERS}))


def _top(name: str) -> str:
    return name.partition(".")[0]


def _namespaces(classes: frozenset[type]) -> list[dict[str, Any]]:
    """The namespaces of the files that define `classes`, and of the user's other files that these use, and so on."""
    found: dict[int, dict[str, Any]] = {}
    todo = [vars(sys.modules[name]) for name in _starts(classes) if name in sys.modules]
    todo += [f.__globals__ for c in classes if isinstance(f := vars(c).get("forward"), types.FunctionType)]
    while todo and len(found) < _MOST_NAMESPACES:
        namespace = todo.pop(0)
        if id(namespace) in found or _top(str(namespace.get("__name__"))) in _OTHERS:
            continue
        found[id(namespace)] = namespace
        if not _is_installed(namespace):
            used = [h.__globals__ for h in _holders(namespace) if isinstance(h, types.FunctionType)]
            used += [vars(v) for v in list(namespace.values()) if isinstance(v, types.ModuleType)]
            todo += [n for n in used if not _is_installed(n)]
    return list(found.values())


def _is_installed(namespace: dict[str, Any]) -> bool:
    """Whether a namespace is that of a library, not of the user's program."""
    file = str(namespace.get("__file__") or "")
    return any(place in file for place in _LIBRARIES)


def _holders(namespace: dict[str, Any]) -> list[Any]:
    """What in a namespace may keep something between calls."""
    known = _KNOWN.get(id(namespace))
    if known is None or known[1] != len(namespace):
        found = [h for v in list(namespace.values()) for h in _parts(v, str(namespace.get("__name__")))]
        known = _KNOWN[id(namespace)] = namespace, len(namespace), found
    return known[2]


def _parts(value: Any, module: str) -> Iterator[Any]:
    if _is_container(value):
        yield value
    if isinstance(value, _FUNCTIONS):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        if value.__module__ == module:
            yield value
            yield from (p for v in vars(value).values() if isinstance(v, _FUNCTIONS) for p in _parts_of_function(v))
    elif type(value).__module__ == module and not isinstance(value, nn.Module) and hasattr(value, "__dict__"):
        yield value


def _parts_of_function(value: Any) -> Iterator[Any]:
    while True:
        if isinstance(value, _CACHE):
            yield value
        if isinstance(value, types.FunctionType):
            yield value
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            yield from (d for d in defaults if _is_container(d))
            yield from (c for cell in value.__closure__ or () if _is_container(c := _content(cell)))
        if not hasattr(value, "__wrapped__") and not hasattr(value, "__func__"):
            return
        value = getattr(value, "__func__", None) or value.__wrapped__


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
