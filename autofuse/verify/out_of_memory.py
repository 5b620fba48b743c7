"""Errors that say that memory ran out. They tell nothing of the code that ran: who checks it must not take them so."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: of an accelerator, of Python, or of torch's allocator on a CPU."""
    said = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or said


def pass_on_if_out_of_memory(error: BaseException) -> None:
    """Raises `error` again, if it is one."""
    if is_out_of_memory(error):
        raise error
