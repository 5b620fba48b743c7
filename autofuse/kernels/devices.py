"""Facts about the device on which a kernel runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# Assumed without a GPU (meta device, Triton's interpreter): the multiprocessors of an H100 or H200.
_ASSUMED = 132


class _MetaDevice(threading.local):
    device: torch.device | None = None


_META_DEVICE = _MetaDevice()


@contextmanager
def treat_meta_as(device: torch.device) -> Iterator[None]:
    """In the block, and in this thread, tensors on the meta device count as tensors on `device`."""
    before, _META_DEVICE.device = _META_DEVICE.device, device
    try:
        yield
    finally:
        _META_DEVICE.device = before


def index_of(x: Tensor) -> int | None:
    """The index of the accelerator that holds `x`; None if no accelerator does."""
    index: int | None = x.device.index
    if index is None and x.is_meta and _META_DEVICE.device is not None:
        return _META_DEVICE.device.index
    return index


def run_on_device_of(x: Tensor, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """run(x, *args, **kwargs) with the device of `x` as the current device. Many kernels run on the current device."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return run(x, *args, **kwargs)
    with torch.cuda.device(x.device):
        return run(x, *args, **kwargs)


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of `device`; 132, that of an H100, if it is not a CUDA GPU."""
    if device.type == "meta" and _META_DEVICE.device is not None:
        device = _META_DEVICE.device
    return _multiprocessors(device)


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return _ASSUMED
    return torch.cuda.get_device_properties(device).multi_processor_count
