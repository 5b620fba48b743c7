"""The state around a call that is not passed as an argument: gradient mode, autocast, saved-tensor hooks, generators.

A trace is valid only under the state in which it was recorded. A graph cannot hold a forward that changes this state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from autofuse.fx.trace.decimal_context import keep_decimal_signals
from autofuse.torch_private import (
    COUNTING_MODULES,
    DeviceContext,
    disable_current_modes,
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
    get_tracing_state,
    is_fx_symbolic_tracing,
    is_recorded,
    len_torch_function_stack,
    peek_interpreter_stack,
    saved_tensors_hooks_is_enabled,
    top_saved_tensors_default_hooks,
)

_CPU = torch.device("cpu")


class Autocast(NamedTuple):
    """Whether autocast is enabled for a device type, and to which dtype it casts."""

    device: str
    enabled: bool
    dtype: torch.dtype | None


class AmbientState(NamedTuple):
    """The state of a call that its arguments do not contain.

    Attributes:
        grad: whether gradients are enabled.
        inference: whether inference mode is enabled.
        hooks: whether default hooks for saved tensors are set.
        autocast: the state of autocast, one entry for each device type.
    """

    grad: bool
    inference: bool
    hooks: bool
    autocast: tuple[Autocast, ...]


def current_ambient_state() -> AmbientState:
    """The current state, on this thread."""
    hooks = top_saved_tensors_default_hooks(True) is not None
    return AmbientState(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks, autocast())


def autocast() -> tuple[Autocast, ...]:
    """The state of autocast for each device type that a model may use."""
    return tuple(_autocast(device) for device in ("cpu", "cuda"))


def _autocast(device: str) -> Autocast:
    enabled = torch.is_autocast_enabled(device)
    return Autocast(device, enabled, torch.get_autocast_dtype(device) if enabled else None)


def may_capture() -> bool:
    """Whether this is an ordinary call on tensors with numbers, which nothing records or transforms."""
    return not (
        torch.compiler.is_compiling()
        or is_fx_symbolic_tracing()
        or get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or is_recorded()
        or foreign_modes()
        or any(not isinstance(m, DeviceContext) for m in get_current_function_mode_stack())
    )


def device_by_default() -> torch.device:
    """The device on which a factory function such as `torch.ones` makes a tensor. Without a mode it is the CPU."""
    return torch.get_default_device() if len_torch_function_stack() else _CPU


def foreign_modes() -> list[str]:
    """The class names of the active modes that belong to the user and may observe or change an operation.

    Modes of torch do not count, except those that count or print the operations of a program.
    """
    modes = (*get_current_function_mode_stack(), *get_current_dispatch_mode_stack())
    observers = (
        c for c in map(type, modes) if c.__module__ in COUNTING_MODULES or _package(c) not in ("torch", "autofuse")
    )
    return [c.__qualname__ for c in observers]


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@contextmanager
def without_observers() -> Iterator[None]:
    """Hide the operations inside the block from whatever observes the surrounding call.

    Checkpointing counts the tensors that a call saves. Selective checkpointing, like any dispatch mode, sees each
    operator. Neither may count a capture and its checks as a part of the model. What is found out about a call in
    inference mode is also valid outside of inference mode.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(disable_current_modes())
        if saved_tensors_hooks_is_enabled():
            # torch calls only the innermost hooks, so these hide the outer ones.
            stack.enter_context(saved_tensors_hooks(_detach_with_version, _check_version))
        yield


def saves_as_autograd(hooks: tuple[Any, Any] | None) -> bool:
    """Whether these hooks for saved tensors are None or those of `without_observers`, which no user code sees."""
    return hooks is None or hooks[0] is _detach_with_version


def _detach_with_version(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Detach the tensor: an operation that saves its own result would otherwise keep itself alive."""
    return x.detach(), x._version


def _check_version(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """The saved tensor.

    Raises:
        RuntimeError: the tensor was written in place. Autograd checks versions itself only where there are no hooks.
    """
    x, version = saved
    # The message of autograd itself, which programs may catch.
    if x._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )
    return x


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Keep autocast from caching the cast weights of a run that is not the user's."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the generators of torch, Python and numpy, and the signals of `decimal`, after the block."""
    numpy: Any = sys.modules.get("numpy")  # importing it would be a side effect
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(_initialised_devices()), keep_decimal_signals():
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def _initialised_devices() -> list[int]:
    """The CUDA devices that have a generator. A query for others would start the driver."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def random_states() -> tuple[object, ...]:
    """The states of the generators of Python and numpy. A comparison shows whether a forward drew from them."""
    numpy: Any = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    return random.getstate(), (state[1].tobytes(), *state[2:]) if state else None
