"""Facts about the device that a kernel runs on. It knows devices, not kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# What is assumed of a GPU where there is none (the meta device, Triton's interpreter): an H100's or H200's.
_ASSUMED = 132


class _StandIn(threading.local):
    device: torch.device | None = None


_STAND_IN = _StandIn()


@contextmanager
def standing_for(device: torch.device) -> Iterator[None]:
    """In the block, and in this thread, tensors on the meta device count as tensors on `device`."""
    before, _STAND_IN.device = _STAND_IN.device, device
    try:
        yield
    finally:
        _STAND_IN.device = before


def index_of(x: Tensor) -> int | None:
    """The number of the accelerator on which `x` lies; None where it lies on none."""
    index: int | None = x.device.index
    if index is None and x.is_meta and _STAND_IN.device is not None:
        return _STAND_IN.device.index
    return index


def run_on_device_of(x: Tensor, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """run(x, *args, **kwargs) where the device of `x` is current: many kernels run on whatever device is current."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return run(x, *args, **kwargs)
    with torch.cuda.device(x.device):
        return run(x, *args, **kwargs)


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors `device` has; 132, those of an H100, for a device that is no CUDA GPU."""
    if device.type == "meta" and _STAND_IN.device is not None:
        device = _STAND_IN.device
    return _multiprocessors(device)


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return _ASSUMED
    return torch.cuda.get_device_properties(device).multi_processor_count
