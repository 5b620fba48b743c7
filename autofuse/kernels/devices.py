"""Facts about the device that a kernel runs on. It knows devices, not kernels."""

from __future__ import annotations

from functools import lru_cache

import torch

# What stands in for a GPU where there is none (the meta device, Triton's interpreter): an H100's or H200's.
_ASSUMED = 132


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors `device` has; 132, those of an H100, for a device that is no CUDA GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _ASSUMED
