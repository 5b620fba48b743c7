"""What surrounds a forward without being passed to it: gradient mode, autocast, saved-tensor hooks, random state.

A trace is valid where its surroundings were the same; a forward that changes them cannot be held by a graph.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from autofuse.torch_private import (
    COUNTING_MODULES,
    DeviceContext,
    disable_current_modes,
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
    get_tracing_state,
    is_fx_symbolic_tracing,
    is_recorded,
    peek_interpreter_stack,
    saved_tensors_hooks_is_enabled,
    top_saved_tensors_default_hooks,
)


class Autocast(NamedTuple):
    """Whether a kind of device casts automatically, and to what."""

    device: str
    enabled: bool
    dtype: torch.dtype | None


class AmbientState(NamedTuple):
    """Everything about a call that its arguments do not say."""

    grad: bool
    inference: bool
    hooks: bool
    autocast: tuple[Autocast, ...]


def ambient() -> AmbientState:
    """The surroundings of this very moment, on this thread."""
    hooks = top_saved_tensors_default_hooks(True) is not None
    return AmbientState(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks, autocast())


def autocast() -> tuple[Autocast, ...]:
    """The autocast state of each kind of device a model may be on."""
    return tuple(_autocast(device) for device in ("cpu", "cuda"))


def _autocast(device: str) -> Autocast:
    enabled = torch.is_autocast_enabled(device)
    return Autocast(device, enabled, torch.get_autocast_dtype(device) if enabled else None)


def may_capture() -> bool:
    """Whether this is an ordinary call, on tensors with numbers: not one that somebody records or transforms."""
    return not (
        torch.compiler.is_compiling()
        or is_fx_symbolic_tracing()
        or get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or is_recorded()
        or foreign_modes()
        or any(not isinstance(m, DeviceContext) for m in get_current_function_mode_stack())
    )


def foreign_modes() -> list[str]:
    """The classes of the modes that are on and the user's, who hears of each operation, or may change what it computes.

    torch's own are not, but for those that count or print the operations of a program.
    """
    on = (*get_current_function_mode_stack(), *get_current_dispatch_mode_stack())
    heard = (c for c in map(type, on) if c.__module__ in COUNTING_MODULES or _package(c) not in ("torch", "autofuse"))
    return [c.__qualname__ for c in heard]


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@contextmanager
def unobserved() -> Iterator[None]:
    """Keep what is computed inside from whoever watches the call around it.

    Checkpointing counts the tensors that a call saves, and selective checkpointing, like any dispatch mode, sees each
    operator; neither may take a capture and its checks for a part of the model. What is learned of a call in inference
    mode holds outside of it.
    """
    with ExitStack() as around:
        around.enter_context(torch.inference_mode(False))
        around.enter_context(disable_current_modes())
        if saved_tensors_hooks_is_enabled():
            around.enter_context(saved_tensors_hooks(_with_version, _unwritten))  # only the innermost hooks are called
        yield


def saves_as_autograd(hooks: tuple[Any, Any] | None) -> bool:
    """Whether these hooks for saved tensors are none, or those of `unobserved`, which nobody else hears."""
    return hooks is None or hooks[0] is _with_version


def _with_version(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Apart from the graph: what an operation keeps of its own result would hold itself for ever."""
    return x.detach(), x._version


def _unwritten(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """What was saved. Raises RuntimeError as autograd does, which asks for versions only where there are no hooks."""
    x, version = saved
    if x._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )
    return x


@contextmanager
def without_cached_casts() -> Iterator[None]:
    """Keep autocast from remembering the weights of a run that is not the user's."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def undisturbed_randomness() -> Iterator[None]:
    """Give torch's, Python's and numpy's generators back as they were found."""
    numpy: Any = sys.modules.get("numpy")  # never imported on the user's behalf
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(_initialised_devices()):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def _initialised_devices() -> list[int]:
    """The CUDA devices that have a generator: asking for others would start the driver."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def random_states() -> tuple[object, ...]:
    """Python's and numpy's generators, to notice that a forward drew from them."""
    numpy: Any = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy else None
    return random.getstate(), (drawn[1].tobytes(), *drawn[2:]) if drawn else None
