"""Errors that mean that memory ran out. They show nothing about the code that ran, so a check must not count them."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of an accelerator, of Python, or of torch's CPU allocator ran out."""
    is_cpu_allocator = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or is_cpu_allocator


def reraise_if_out_of_memory(error: BaseException) -> None:
    """Raise `error` again if it means that memory ran out."""
    if is_out_of_memory(error):
        raise error
