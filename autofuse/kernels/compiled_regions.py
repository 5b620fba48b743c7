"""Compiled regions: a plain function of tensors, compiled by Inductor into one loop and called without Dynamo.

Knows how often a region has to be compiled; must not know what regions compute, nor how one is (region_compiler.py). A
call costs about three microseconds, where a function under torch.compile costs twenty. Sizes are compiled in, but for
the number of rows.
Where compiling fails (no compiler, another Inductor), the function itself runs, slower and the same, and no operation
asks for regions any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.kernels.packages import give_up
from autofuse.kernels.region_compiler import Compilation, compilation

_LOG = logging.getLogger("autofuse")
_LOCK = threading.RLock()
_SEEN = 4096  # different sizes that a region remembers
_BUCKET = 3  # bits: one compilation serves row counts up to eight times each other


def region(rows: str) -> Callable[[Callable[..., Any]], CompiledRegion]:
    """Compile a function of tensors, None and plain values; `rows` names the tensors whose first size is that of rows.

    That size is one number in a call, and every other size is compiled in, as are strides and plain values. The
    function must not return its arguments, nor write into them but to fill one with a result (`argument.copy_(made)`),
    and gives its results in new memory, as a tensor or a tuple. Gradients do not pass through it.
    """

    def decorated(function: Callable[..., Any]) -> CompiledRegion:
        return CompiledRegion(function, frozenset(rows.split()))

    return decorated


class CompiledRegion:
    """A compiled function; one compilation for each combination of dtypes, sizes, plain values and threads."""

    def __init__(self, function: Callable[..., Any], rows: frozenset[str]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        unknown = rows - set(names)
        if unknown:
            raise ValueError(f"{function.__name__} has no argument called {', '.join(sorted(unknown))}.")
        self._rows = tuple(name in rows for name in names)
        self._made: dict[tuple[Any, ...], _Compiled | None] = {}
        self._seen: dict[tuple[Any, ...], Callable[..., Any]] = {}  # what runs for arguments of exactly these sizes

    def __call__(self, *args: Any) -> Any:
        exactly = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in args]
        key = (torch.get_num_threads(), *exactly)
        runs = self._seen.get(key)
        if runs is None:
            runs = self._for(args)
            if not _sharing:
                if len(self._seen) >= _SEEN:
                    self._seen.clear()
                self._seen[key] = runs
        return runs(*args)

    def _for(self, args: Sequence[Any]) -> Callable[..., Any]:
        """What runs for such arguments: the compiled loop, or the function itself where that does not hold for them."""
        key = self._key(args)
        if key not in self._made:
            if _sharing and (other := self._made_for_more_rows(args, key)) is not None:
                return other
            self._made[key] = self._compiled(args, key)
        found = self._made[key]
        return self.function if found is None or not found.made.serves(args) else found.run

    def _made_for_more_rows(self, args: Sequence[Any], key: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What was compiled for calls that differ in the number of rows alone, if it holds for these."""
        alike = _without_rows(key)
        for known, found in self._made.items():
            if found is not None and _without_rows(known) == alike and found.made.serves(args):
                return found.run
        return None

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parts: list[Any] = [torch.get_num_threads()]
        for x, by_row in zip(args, self._rows, strict=True):
            if not isinstance(x, Tensor):
                parts.append(x)
            elif by_row:
                rows = x.shape[0]
                parts += x.dtype, _Rows(rows if rows < 2 else -(rows.bit_length() // _BUCKET)), x.shape[1:], x.stride()
            else:
                parts += x.dtype, x.shape, x.stride()
        return tuple(parts)

    def _compiled(self, args: Sequence[Any], key: tuple[Any, ...]) -> _Compiled | None:
        with _LOCK:
            try:
                symbolic = [_symbolic(x, by) for x, by in zip(args, self._rows, strict=True)]
                made = compilation(self.function, args, symbolic, repr(key))
                return _Compiled(made, made.runner())
            except Exception as error:  # whatever a compiler may raise
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                _LOG.warning("autofuse: %s could not be compiled and runs as it is: %s", self.function.__name__, why)
                give_up("compiled", f"A region could not be compiled: {why}")
                return None


def _symbolic(x: Any, by_row: bool) -> tuple[int, ...]:
    """The dimensions of an argument that are not compiled in: its first, if that is the number of rows."""
    return (0,) if by_row and isinstance(x, Tensor) and x.shape[0] > 1 else ()


class _Rows(int):
    """A range of numbers of rows, in a key."""


def _without_rows(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if isinstance(part, _Rows) and part < 0 else part for part in key)


_sharing: list[None] = []


@contextmanager
def shared_regions() -> Iterator[None]:
    """In this block a region runs what was compiled for another number of rows, where that holds.

    So what is checked on a part of a call is the very code that runs for all of it, and nothing is compiled for a part.
    """
    _sharing.append(None)
    try:
        yield
    finally:
        _sharing.pop()


class _Compiled(NamedTuple):
    made: Compilation
    run: Callable[..., Any]
