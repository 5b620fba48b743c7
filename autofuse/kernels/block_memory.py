"""How many rows of a GPU's work fit into a fair share of its memory. Knows memory; must not know what fills it."""

from __future__ import annotations

import torch

from autofuse.kernels.policy import settings

_UNIT = 256  # rows; matrix products on GPUs take 64 to 256 rows at a time, and what is left over idles
_MOST = 4096  # rows; more save less than a tenth of a product's time, whatever the memory
_USUAL = 2**28  # bytes that a block may take on any GPU
_SHARE = 16  # the part of free memory that a block may take where that is more


def rows_by_memory(bytes_per_row: int, least: int, free: int) -> int:
    """Rows of a block: 256 times a power of two, so that what is free at a call rarely changes it.

    bytes_per_row: of all tensors of a block. A block takes at most 256 MiB or a sixteenth of `free` bytes, whichever
    is more; and it has at least `least` rows and at most 4096.
    """
    room = max(_USUAL, free // _SHARE)
    rows = min(_UNIT, least)
    while rows < _MOST and (rows < least or 2 * rows * bytes_per_row <= room):
        rows *= 2
    return rows


def free_bytes(device: torch.device) -> int:
    """The memory of a CUDA device that this process can take; 0 where the same call has to give the same each time.

    That is under the setting for repeatable results, and while a CUDA graph is captured.
    """
    if settings().repeatable or torch.cuda.is_current_stream_capturing():
        return 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused
