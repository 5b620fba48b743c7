"""What surrounds a forward without being passed to it: gradient mode, autocast, saved-tensor hooks, random state.

A trace is valid where its surroundings were the same; a forward that changes them cannot be held by a graph.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Autocast(NamedTuple):
    """Whether a kind of device casts automatically, and to what."""

    device: str
    enabled: bool
    dtype: torch.dtype | None


class Ambient(NamedTuple):
    """Everything about a call that its arguments do not say."""

    grad: bool
    inference: bool
    hooks: bool
    autocast: tuple[Autocast, ...]


def ambient() -> Ambient:
    """The surroundings of this very moment, on this thread."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return Ambient(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks, autocast())


def autocast() -> tuple[Autocast, ...]:
    """The autocast state of each kind of device a model may be on."""
    return tuple(_autocast(device) for device in ("cpu", "cuda"))


def _autocast(device: str) -> Autocast:
    enabled = torch.is_autocast_enabled(device)
    return Autocast(device, enabled, torch.get_autocast_dtype(device) if enabled else None)


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
