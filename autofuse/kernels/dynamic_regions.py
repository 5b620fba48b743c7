"""Compiled regions in which all sizes may change from call to call, except chosen ones.

A region of autofuse/kernels/compiled_regions.py compiles in all sizes except one, which is right for rows of one width.
If lengths change with the batch, or a cache grows with each token, it would compile again and again. Here sizes and
strides stay symbols, except sizes of 0 and 1, which decide about broadcasting, and the sizes of named dimensions.
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
_MOST = 64  # compilations of one region in a process; further ones run uncompiled
_REMEMBERED = 2**12  # shapes in the look-up table; a full table is emptied


def free_region(**fixed: Sequence[int]) -> Callable[[Callable[..., Any]], DynamicRegion]:
    """A decorator that compiles a function of tensors, None and plain values for all sizes at once.

    The function must not write into its arguments or return them. It returns new memory, as a tensor or a tuple. It has
    no gradients. Plain values are compiled in.

    Args:
        **fixed: by the argument's name, the dimensions whose sizes are compiled in: `x=(-1,)`.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[..., Any]) -> DynamicRegion:
        return DynamicRegion(function, fixed)

    return decorate


class DynamicRegion:
    """A compiled function. Usually it has one compilation for each combination of dtypes and broadcast dimensions."""

    def __init__(self, function: Callable[..., Any], fixed: Mapping[str, Sequence[int]]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._fixed = tuple(tuple(fixed.get(name, ())) for name in names)
        self._loops: dict[tuple[Any, ...], list[_Loop]] = {}
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Runs the compiled loop for these arguments, which compiles it if necessary."""
        parts: list[Any] = [torch.get_num_threads()]
        for x in args:
            parts += (x.dtype, x.shape, x.stride()) if isinstance(x, Tensor) else (x,)
        exact = tuple(parts)
        function = self._known.get(exact)
        if function is None:
            function = self._remember(exact, self._find_or_compile(args))
        return function(*args)

    def _remember(self, exact: tuple[Any, ...], function: Callable[..., Any]) -> Callable[..., Any]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[exact] = function
        return function

    def _find_or_compile(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compilation for these arguments, compiled if necessary; the plain function if that is not possible."""
        with _LOCK:
            coarse = self._coarse_key(args)
            compiled = self._loops.setdefault(coarse, [])
            for known in compiled:
                if known.code.serves(args):
                    return known.run
            if sum(map(len, self._loops.values())) >= _MOST:
                return self.function
            try:
                new = compilation(self.function, args, self._symbolic_dimensions(args), repr(coarse))
                if new.serves(args):
                    compiled.append(_Loop(new, new.runner()))
                    return compiled[-1].run
                why = "the compiled loop does not support the sizes for which it was compiled"
            except Exception as error:  # a compiler may raise anything
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            _LOG.warning("autofuse could not compile %s; it runs uncompiled: %s", self.function.__name__, why)
            give_up("compiled", f"A region could not be compiled: {why}")
            return self.function

    def _symbolic_dimensions(self, args: Sequence[Any]) -> list[tuple[int, ...]]:
        """The dimensions of each argument whose sizes are not compiled in."""
        found = list[tuple[int, ...]]()
        for x, fixed in zip(args, self._fixed, strict=True):
            sizes = x.shape if isinstance(x, Tensor) else ()
            static = {i % len(sizes) for i in fixed} if sizes else set()
            found.append(tuple(i for i, n in enumerate(sizes) if i not in static and n >= 2))
        return found

    def _coarse_key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parts: list[Any] = [torch.get_num_threads()]
        for x, fixed in zip(args, self._fixed, strict=True):
            if isinstance(x, Tensor):
                sizes = tuple(n if n < 2 else 2 for n in x.shape)
                strides = tuple(n if n < 2 else 2 for n in x.stride())
                parts += x.dtype, sizes, strides, tuple(x.shape[i] for i in fixed)
            else:
                parts.append(x)
        return tuple(parts)


class _Loop(NamedTuple):
    code: Compilation
    run: Callable[..., Any]
