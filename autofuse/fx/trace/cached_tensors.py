"""Tensors that functools keeps for the user: a mask of a function with `lru_cache`.

A rewritten forward computes such a tensor anew. That is the same for as long as nobody writes to the one that is kept,
which is counted.
"""

from __future__ import annotations

import gc
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from autofuse.fx.trace import effects
from autofuse.torch_private import assumed_constant

_DEPTH = 3
_NONE = frozenset({0})
_OWN_REFERENCES = 4  # to a tensor: the cache's, a list's, a loop's and an argument's
_VERSIONS: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()  # what the function itself writes, counted


def tensors_in(cache: Any) -> Iterator[Tensor]:
    """The tensors among the results that a cache holds."""
    for held in gc.get_referents(cache):
        yield from _tensors(held, 0)


def note(cache: Any) -> None:
    """Remember how often results were written to when the function had made them, and nobody else had them."""
    known = _VERSIONS.get(cache, frozenset())
    _VERSIONS[cache] = known or frozenset(map(_version, tensors_in(cache)))


def holds_tensors(cache: Any) -> bool:
    """Whether a cache was found to hold tensors, now or in a run that was watched."""
    return cache in _VERSIONS or next(tensors_in(cache), None) is not None


@assumed_constant
def is_unwritten(cache: Any) -> bool:
    """Whether nobody has written to the tensors that a cache holds.

    Where the function was never watched, that says that it did not write to them either.
    """
    known = _VERSIONS.get(cache, _NONE)
    return all(_version(t) in known for t in tensors_in(cache))


def is_held_elsewhere(cache: Any) -> bool:
    """Whether somebody else has a tensor that a cache holds, and would find that the cache gives another one.

    A trace empties such caches: what they hold then is made anew.
    """
    held = list({id(t): t for t in tensors_in(cache)}.values())
    return any(sys.getrefcount(t) > _OWN_REFERENCES for t in held)


def is_asked(cache: Any) -> bool:
    """Whether the program reads how often a cache was hit: a rewritten forward does not ask the cache.

    The evidence is the text of the file that defines the function, and of those that are running.
    """
    files = {
        getattr(sys.modules.get(name), "__file__", None) for name in ("__main__", cache.__module__) if _may_ask(name)
    }
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if _may_ask(frame.f_globals.get("__name__", "")):
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return any("cache_info" in line for file in files if file for line in linecache.getlines(file))


def _may_ask(name: object) -> bool:
    return not effects.is_library(name) and not effects.is_standard(name)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth <= _DEPTH:
        inside: Any = ()
        if isinstance(value, (list, tuple, set)):
            inside = value
        elif isinstance(value, dict):
            inside = value.values()
        elif type(value).__name__ == "_lru_list_elem":
            inside = (v for v in gc.get_referents(value) if type(v).__name__ != "_lru_list_elem")
        for part in inside:
            yield from _tensors(part, depth + 1)
