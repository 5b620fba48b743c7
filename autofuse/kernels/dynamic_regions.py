"""Compiled regions of which every size but chosen ones may change from call to call without a new compilation.

A region of autofuse/kernels/compiled_regions.py compiles in all sizes but one, which suits rows of one width. Where
lengths change with the batch, or a cache grows with each token, that would mean to compile again and again: here sizes
and strides stay symbols, but for those that are 1 or 0, which say what broadcasts, and those of named dimensions. Knows
which compilation serves which call; must not know what regions compute, nor how they are compiled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.kernels.packages import give_up
from autofuse.kernels.region_compiler import Compilation, compilation

_LOG = logging.getLogger("autofuse")
_LOCK = threading.RLock()
_MOST = 64  # compilations of one region in a process; what comes after runs as it is
_REMEMBERED = 2**12  # shapes that were looked up before; the table is emptied when it has grown so large


def free_region(**fixed: Sequence[int]) -> Callable[[Callable[..., Any]], DynamicRegion]:
    """Compile a function of tensors, None and plain values, for all sizes at once.

    `fixed` gives dimensions, by the argument's name, whose sizes are compiled in: `x=(-1,)`. So are plain values.
    The function must not write into its arguments or return them, and gives its results in new memory, as a tensor or
    a tuple. Gradients do not pass through it.
    """

    def decorated(function: Callable[..., Any]) -> DynamicRegion:
        return DynamicRegion(function, fixed)

    return decorated


class DynamicRegion:
    """A compiled function; as a rule one compilation for each combination of dtypes and broadcast dimensions."""

    def __init__(self, function: Callable[..., Any], fixed: Mapping[str, Sequence[int]]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._fixed = tuple(tuple(fixed.get(name, ())) for name in names)
        self._compiled: dict[tuple[Any, ...], list[_Compiled]] = {}
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        parts: list[Any] = [torch.get_num_threads()]
        for x in args:
            parts += (x.dtype, x.shape, x.stride()) if isinstance(x, Tensor) else (x,)
        exact = tuple(parts)
        made = self._known.get(exact)
        if made is None:
            made = self._remembered(exact, self._found(args))
        return made(*args)

    def _remembered(self, exact: tuple[Any, ...], made: Callable[..., Any]) -> Callable[..., Any]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[exact] = made
        return made

    def _found(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compilation that serves these arguments, made if there is none; the function where none can be."""
        with _LOCK:
            coarse = self._coarse(args)
            compiled = self._compiled.setdefault(coarse, [])
            for known in compiled:
                if known.made.serves(args):
                    return known.run
            if sum(map(len, self._compiled.values())) >= _MOST:
                return self.function
            try:
                new = compilation(self.function, args, self._symbolic(args), repr(coarse))
                if new.serves(args):
                    compiled.append(_Compiled(new, new.runner()))
                    return compiled[-1].run
                why = "what was compiled does not hold for what it was compiled for"
            except Exception as error:  # whatever a compiler may raise
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            _LOG.warning("autofuse: %s could not be compiled and runs as it is: %s", self.function.__name__, why)
            give_up("compiled", f"A region could not be compiled: {why}")
            return self.function

    def _symbolic(self, args: Sequence[Any]) -> list[tuple[int, ...]]:
        """The dimensions of each argument whose sizes are not compiled in."""
        found = list[tuple[int, ...]]()
        for x, fixed in zip(args, self._fixed, strict=True):
            sizes = x.shape if isinstance(x, Tensor) else ()
            static = {i % len(sizes) for i in fixed} if sizes else set()
            found.append(tuple(i for i, n in enumerate(sizes) if i not in static and n >= 2))
        return found

    def _coarse(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parts: list[Any] = [torch.get_num_threads()]
        for x, fixed in zip(args, self._fixed, strict=True):
            if isinstance(x, Tensor):
                sizes = tuple(n if n < 2 else 2 for n in x.shape)
                strides = tuple(n if n < 2 else 2 for n in x.stride())
                parts += x.dtype, sizes, strides, tuple(x.shape[i] for i in fixed)
            else:
                parts.append(x)
        return tuple(parts)


class _Compiled(NamedTuple):
    made: Compilation
    run: Callable[..., Any]
