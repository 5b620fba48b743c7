"""Tensors that functools caches for the user, such as a mask in a function with `lru_cache`.

A rewritten forward computes such a tensor again. The result is the same while nothing writes to the cached tensor. The
version counters of the tensors show this.
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
_OWN_REFERENCES = 4  # to a tensor: of the cache, a list, a loop variable and an argument
_VERSIONS: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()  # versions after the function's own writes


def tensors_in(cache: Any) -> Iterator[Tensor]:
    """The tensors in the results of a cache."""
    for result in gc.get_referents(cache):
        yield from _tensors(result, 0)


def record_versions(cache: Any) -> None:
    """Record the versions of the cached tensors just after the function returned them."""
    known = _VERSIONS.get(cache, frozenset())
    _VERSIONS[cache] = known or frozenset(map(_version, tensors_in(cache)))


def holds_tensors(cache: Any) -> bool:
    """Whether the cache holds tensors now, or held some in an observed run."""
    return cache in _VERSIONS or next(tensors_in(cache), None) is not None


@assumed_constant
def is_unwritten(cache: Any) -> bool:
    """Whether nothing has written to the tensors of a cache.

    If the function was never observed, this also requires that the function itself did not write to them.
    """
    known = _VERSIONS.get(cache, _NONE)
    return all(_version(t) in known for t in tensors_in(cache))


def is_held_elsewhere(cache: Any) -> bool:
    """Whether something else refers to a cached tensor and would notice that the cache returns another one.

    A trace empties such caches, so their contents are computed again.
    """
    cached = list({id(t): t for t in tensors_in(cache)}.values())
    return any(sys.getrefcount(t) > _OWN_REFERENCES for t in cached)


def is_hit_count_read(cache: Any) -> bool:
    """Whether the program reads the hit count of a cache, which a rewritten forward does not update.

    The evidence is the text of the file that defines the function and of the files that are running.
    """
    files = {
        getattr(sys.modules.get(name), "__file__", None)
        for name in ("__main__", cache.__module__)
        if _is_user_module(name)
    }
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if _is_user_module(frame.f_globals.get("__name__", "")):
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return any("cache_info" in line for file in files if file for line in linecache.getlines(file))


def _is_user_module(name: object) -> bool:
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
