"""Launches every kernel of this folder on the device of its tensors, with a number of threads instead of warps.

Triton launches on the current device and its current stream, whatever the device of the tensors. A warp has 32 threads
on NVIDIA GPUs and 64 on AMD's CDNA GPUs; a block has at most 1024 threads on both. So no kernel is launched as
`kernel[grid](...)`, only through `launch`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import gcd
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autofuse.kernels.devices import index_of

_OPTIONS: dict[tuple[Any, int, int, int], dict[str, int]] = {}


class DoesNotCompile(Exception):
    """A kernel that Triton does not compile, or that the device does not load. The message says which, and why."""


class _Rehearsal(threading.local):
    compiled: list[str] | None = None


_REHEARSAL = _Rehearsal()


def launch(
    kernel: Any, grid: tuple[int, ...], first: Tensor, *rest: Any, threads: int, registers: int = 0, **constants: Any
) -> None:
    """Launches `kernel` on the device of `first`, its first argument, on that device's current stream.

    Args:
        kernel: the kernel.
        grid: the number of programs in up to three dimensions, each at least 1.
        first: the kernel's first argument.
        *rest: its other arguments.
        threads: the threads of a program, a power of two from 32 to 1024.
        registers: the most registers for a thread on NVIDIA GPUs; 0 for no limit.
        **constants: the kernel's constexpr arguments.
    """
    if not isinstance(kernel, JITFunction):  # interpreted
        kernel[grid](first, *rest, **constants)
        return
    active = driver.active
    current = active.get_current_device()
    index = index_of(first)
    if index is None or index == current:
        options = _options(active, current, threads, registers)
        if _REHEARSAL.compiled is None:
            kernel[grid](first, *rest, **constants, **options)
        else:
            _compile(kernel, grid, (first, *rest), constants | options)
        return
    with torch.cuda.device(index):
        launch(kernel, grid, first, *rest, threads=threads, registers=registers, **constants)


@lru_cache(maxsize=4096)
def unit(*sizes: int) -> tuple[int, tuple[int, ...]]:
    """The largest power of two, up to 16, that divides all of `sizes`, and the sizes in that unit.

    Triton only learns whether a number is a multiple of 16. A kernel that multiplies a width or stride by a constant
    unit can load 8 bytes at a time from a row of 4100 halves, instead of 2.
    """
    each = gcd(16, *sizes)
    return each, tuple([size // each for size in sizes])


def _compile(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    name = kernel.fn.__name__
    try:
        compiled = kernel.warmup(*arguments, grid=grid, **named)
        compiled.run  # noqa: B018 - loads it, which fails if the device has too little shared memory or registers
    except Exception as error:
        raise DoesNotCompile(f"{name}: {type(error).__name__}: {_last_line(error)}") from error
    if _REHEARSAL.compiled is not None:
        _REHEARSAL.compiled.append(name)


@contextmanager
def rehearsing() -> Iterator[list[str]]:
    """In the block, and in this thread, kernels are compiled and loaded but not launched; yields their names.

    `launch` raises DoesNotCompile.
    """
    before, _REHEARSAL.compiled = _REHEARSAL.compiled, []
    try:
        yield _REHEARSAL.compiled
    finally:
        _REHEARSAL.compiled = before


def _options(active: Any, index: int, threads: int, registers: int) -> dict[str, int]:
    """Triton's options for the current device, number `index`."""
    key = (active, index, threads, registers)
    found = _OPTIONS.get(key)
    if found is None:
        target = active.get_current_target()
        found = {"num_warps": max(threads // target.warp_size, 1)}
        if registers and target.backend == "cuda":
            found["maxnreg"] = registers
        _OPTIONS[key] = found
    return found


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1].strip()[:200]
