"""Compiled regions: plain functions of tensors that Inductor compiles into one loop, called without Dynamo.

A call costs about three microseconds; a function under torch.compile costs twenty. All sizes except the number of rows
are compiled in. If compiling fails (no compiler, another Inductor), the plain function runs, which is slower and
computes the same, and no operation chooses compiled regions any more. region_compiler.py compiles; this file decides
how often.
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
_SEEN = 4096  # combinations of sizes that a region remembers
_BUCKET = 3  # bits: one compilation serves row counts that differ by a factor of up to eight


def region(rows: str) -> Callable[[Callable[..., Any]], CompiledRegion]:
    """A decorator that compiles a function of tensors, None and plain values.

    The number of rows may change from call to call. Every other size, all strides and plain values are compiled in. The
    function must not return its arguments. It may write into an argument only to fill it with a result
    (`argument.copy_(result)`). It returns new memory, as a tensor or a tuple. It has no gradients.

    Args:
        rows: the names of the tensors whose first size is the number of rows, separated by spaces.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[..., Any]) -> CompiledRegion:
        return CompiledRegion(function, frozenset(rows.split()))

    return decorate


class CompiledRegion:
    """A compiled function, with one compilation for each combination of dtypes, sizes, plain values and threads."""

    def __init__(self, function: Callable[..., Any], rows: frozenset[str]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        unknown = rows - set(names)
        if unknown:
            raise ValueError(f"{function.__name__} has no parameter called {', '.join(sorted(unknown))}.")
        self._rows = tuple(name in rows for name in names)
        self._compilations: dict[tuple[Any, ...], _Loop | None] = {}
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}  # by the exact sizes of the arguments

    def __call__(self, *args: Any) -> Any:
        """Runs the compiled loop for these arguments, which compiles it if necessary."""
        exactly = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in args]
        key = (torch.get_num_threads(), *exactly)
        function_for_sizes = self._functions.get(key)
        if function_for_sizes is None:
            function_for_sizes = self._find_or_compile(args)
            if not _sharing:
                if len(self._functions) >= _SEEN:
                    self._functions.clear()
                self._functions[key] = function_for_sizes
        return function_for_sizes(*args)

    def _find_or_compile(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compiled loop for these arguments, or the plain function if the loop does not support them."""
        key = self._key(args)
        if key not in self._compilations:
            if _sharing and (other := self._find_for_other_rows(args, key)) is not None:
                return other
            self._compilations[key] = self._compile(args, key)
        loop = self._compilations[key]
        return self.function if loop is None or not loop.code.serves(args) else loop.run

    def _find_for_other_rows(self, args: Sequence[Any], key: tuple[Any, ...]) -> Callable[..., Any] | None:
        """A loop that was compiled for another number of rows, if it supports these arguments."""
        key_without_rows = _without_rows(key)
        for known, loop in self._compilations.items():
            if loop is not None and _without_rows(known) == key_without_rows and loop.code.serves(args):
                return loop.run
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

    def _compile(self, args: Sequence[Any], key: tuple[Any, ...]) -> _Loop | None:
        with _LOCK:
            try:
                symbolic = [_symbolic_dimensions(x, by) for x, by in zip(args, self._rows, strict=True)]
                compiled = compilation(self.function, args, symbolic, repr(key))
                return _Loop(compiled, compiled.runner())
            except Exception as error:  # a compiler may raise anything
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                _LOG.warning("autofuse could not compile %s; it runs uncompiled: %s", self.function.__name__, why)
                give_up("compiled", f"A region could not be compiled: {why}")
                return None


def _symbolic_dimensions(x: Any, by_row: bool) -> tuple[int, ...]:
    """The dimensions of an argument that are not compiled in: the first one, if it is the number of rows."""
    return (0,) if by_row and isinstance(x, Tensor) and x.shape[0] > 1 else ()


class _Rows(int):
    """A range of row counts, as a part of a key."""


def _without_rows(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if isinstance(part, _Rows) and part < 0 else part for part in key)


_sharing: list[None] = []


@contextmanager
def shared_regions() -> Iterator[None]:
    """In this block, a region may run what was compiled for another number of rows.

    So a check on a part of a call runs the same code as the whole call, and nothing is compiled for the part.
    """
    _sharing.append(None)
    try:
        yield
    finally:
        _sharing.pop()


class _Loop(NamedTuple):
    code: Compilation
    run: Callable[..., Any]
