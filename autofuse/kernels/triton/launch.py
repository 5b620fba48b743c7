"""Launches every kernel of this folder on the device of its tensors, with a number of threads instead of warps.

Triton launches on the current device and its current stream, whatever the device of the tensors. A warp has 32 threads
on NVIDIA GPUs and 64 on AMD's CDNA GPUs; a block has at most 1024 threads on both. So no kernel is launched as
`kernel[grid](...)`, only through `launch`.

At each launch, Triton binds the arguments, looks for the compiled kernel that suits them, and calls its hooks. This
takes longer than many kernels. So `launch` remembers the compiled kernel for arguments of one kind and launches it
directly (measured by benchmarks/launches.py).
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
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autofuse.kernels.devices import index_of

_OPTIONS: dict[tuple[Any, int, int, int], dict[str, int]] = {}
# The compiled kernel for each kind of launch, and the values of the kernel's constants that were given by name.
_COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Any]] = {}
_PLACES: dict[tuple[type, ...], tuple[int, ...]] = {}  # by the types of arguments: the places of tensors
_REMEMBERED = 4096  # kinds of launches
_INTERPRETED_MEMORY = 227 * 1024
_ALIGNMENT = 16  # bytes; Triton compiles another kernel for addresses that are not multiples of it


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
            _launch_remembered(kernel, grid, (first, *rest), constants, options, active, current)
        else:
            _compile(kernel, grid, (first, *rest), constants | options)
        return
    with torch.cuda.device(index):
        launch(kernel, grid, first, *rest, threads=threads, registers=registers, **constants)


class Launch:
    """A launch whose arguments are known, except for its tensors. It remembers the compiled kernel by itself.

    So a call need not build a key of all numbers and constants. `launch_planned` launches it.
    """

    __slots__ = ("compiled", "constants", "grid", "kernel", "numbers", "registers", "threads")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: tuple[int, ...], constants: dict[str, Any], *, threads: int,
        registers: int = 0,
    ) -> None:  # fmt: skip
        """The arguments are those of `launch`. `numbers` follow the tensors in the kernel's parameters."""
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self.threads, self.registers = threads, registers
        # By driver, device, and each tensor's dtype and alignment: the compiled kernel, and the arguments after the
        # tensors.
        self.compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch_planned(planned: Launch, first: Tensor, *rest: Tensor) -> None:
    """Launches `planned` with these tensors on the device of `first`, as `launch` does."""
    kernel = planned.kernel
    if not isinstance(kernel, JITFunction) or _REHEARSAL.compiled is not None:
        return _launch_in_full(planned, first, rest)
    active = driver.active
    current, index = active.get_current_device(), index_of(first)
    if index is not None and index != current:
        return _launch_in_full(planned, first, rest)
    addresses: list[int] = []
    parts: list[Any] = [active, current]
    for tensor in (first, *rest):
        address = tensor.data_ptr()
        addresses.append(address)
        parts.append(tensor.dtype)
        parts.append(address % _ALIGNMENT)
    key = tuple(parts)
    found = planned.compiled.get(key)
    if found is None or kernel.pre_run_hooks:
        arguments = (first, *rest, *planned.numbers)
        options = _options(active, current, planned.threads, planned.registers)
        compiled = kernel[planned.grid](*arguments, **planned.constants, **options)
        named = _named_arguments(kernel, compiled, arguments, planned.constants, active)
        if named is not None and len(planned.compiled) < _REMEMBERED:
            planned.compiled[key] = compiled, (*planned.numbers, *named)
        return None
    compiled, others = found
    _run(compiled, planned.grid, active.get_current_stream(current), (*addresses, *others), (first, *rest, *others))
    return None


def _launch_in_full(planned: Launch, first: Tensor, rest: tuple[Tensor, ...]) -> None:
    launch(
        planned.kernel, planned.grid, first, *rest, *planned.numbers, threads=planned.threads,
        registers=planned.registers, **planned.constants,
    )  # fmt: skip


def _launch_remembered(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], options: dict[str, int],
    active: Any, device: int,
) -> None:  # fmt: skip
    """Launches on the current device, past Triton's search for the compiled kernel if such a launch is remembered.

    Triton compiles a kernel for the dtype and alignment of each tensor, and for some values of other arguments. The key
    has the exact values, and their types, because 1, 1.0 and True are equal. It is written for speed: only tensors are
    looked at one by one.
    """
    kinds = tuple(map(type, arguments))
    places = _PLACES.get(kinds)
    if places is None:
        places = _PLACES[kinds] = tuple(i for i, kind in enumerate(kinds) if issubclass(kind, Tensor))
    values, parts = list(arguments), list(arguments)
    for i in places:
        tensor = arguments[i]
        values[i] = address = tensor.data_ptr()
        parts[i] = address % _ALIGNMENT
        parts.append(tensor.dtype)
    key = (id(kernel), active, device, kinds, *parts, *options.values(), *constants.items())
    found = _COMPILED.get(key)
    if found is None or kernel.pre_run_hooks:
        compiled = kernel[grid](*arguments, **constants, **options)
        _remember(key, kernel, compiled, arguments, constants, active)
        return
    compiled, named, _ = found
    _run(compiled, grid, active.get_current_stream(device), (*values, *named), (*arguments, *named))


def _run(compiled: Any, grid: tuple[int, ...], stream: Any, values: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    """Launches a compiled kernel. `values` are all its arguments, tensors as addresses; `given` has the tensors."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    if _is_empty(enter) and _is_empty(leave):
        metadata = enter = leave = None
    else:
        metadata = compiled.launch_metadata(grid, stream, *given)
    compiled.run(x, y, z, stream, compiled.function, compiled.packed_metadata, metadata, enter, leave, *values)


def _remember(
    key: tuple[Any, ...], kernel: Any, compiled: Any, arguments: tuple[Any, ...], constants: dict[str, Any], active: Any
) -> None:
    """Stores the compiled kernel if the key covers everything that Triton compiles it for."""
    named = _named_arguments(kernel, compiled, arguments, constants, active)
    if named is None:
        return
    if len(_COMPILED) >= _REMEMBERED:
        _COMPILED.clear()
    _COMPILED[key] = (compiled, named, kernel)  # the kernel stays alive, so its id stays its own


def _named_arguments(
    kernel: Any, compiled: Any, arguments: tuple[Any, ...], constants: dict[str, Any], active: Any
) -> tuple[Any, ...] | None:
    """The values of the constants in the order of the parameters; None if the launch must not be remembered.

    On AMD GPUs, Triton also compiles for the size of a tensor's memory. A constant 0.0 and a constant -0.0 are equal as
    keys. A hook of the user's compiler may return no kernel.
    """
    if compiled is None:
        return None
    names = kernel.arg_names[len(arguments) :]
    given = (*arguments, *(constants.get(name) for name in names))
    has_float = any(p.is_constexpr and isinstance(v, float) for p, v in zip(kernel.params, given, strict=True))
    if has_float or len(names) != len(constants) or active.get_current_target().backend != "cuda":
        return None
    return given[len(arguments) :]


def _is_empty(hooks: Any) -> bool:
    """Whether a chain of Triton's hooks has no hooks. Triton calls an empty chain too."""
    return hooks is None or getattr(hooks, "calls", hooks) == []


def block_memory(x: Tensor) -> int:
    """The bytes of shared memory that a block may use on the device of `x`.

    0 on AMD GPUs, where Triton loads ahead in another way. Interpreted kernels have the memory of an H100.
    """
    if knobs.runtime.interpret:
        return _INTERPRETED_MEMORY
    index = index_of(x)
    return _block_memory(driver.active, driver.active.get_current_device() if index is None else index)


@lru_cache(maxsize=64)
def _block_memory(active: Any, index: int) -> int:
    if active.get_current_target().backend != "cuda":
        return 0
    return int(active.utils.get_device_properties(index)["max_shared_mem"])


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
