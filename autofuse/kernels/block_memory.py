"""Computes how many rows of a block fit into a fair share of a GPU's memory."""

from __future__ import annotations

import torch

from autofuse.kernels.policy import settings

_UNIT = 256  # rows; matrix products on GPUs have tiles of 64 to 256 rows, and a partial tile wastes time
_MOST = 4096  # rows; more rows save less than a tenth of a product's time
_USUAL = 2**28  # bytes that a block may use on any GPU
_SHARE = 16  # a block may use this part of the free memory instead, if that is more


def rows_by_memory(bytes_per_row: int, least: int, free: int) -> int:
    """The rows of a block: 256 times a power of two, so that the free memory at a call rarely changes it.

    Args:
        bytes_per_row: the bytes of all tensors of a block, for each row.
        least: the smallest number of rows. The largest is 4096.
        free: free bytes on the device. A block uses at most 256 MiB or a sixteenth of them, whichever is more.

    Returns:
        The number of rows.
    """
    limit = max(_USUAL, free // _SHARE)
    rows = min(_UNIT, least)
    while rows < _MOST and (rows < least or 2 * rows * bytes_per_row <= limit):
        rows *= 2
    return rows


def free_bytes(device: torch.device) -> int:
    """The free memory of a CUDA device for this process, in bytes.

    Returns 0 if equal calls must give equal results: with the setting for repeatable results, and while a CUDA graph is
    captured.
    """
    if settings().repeatable or torch.cuda.is_current_stream_capturing():
        return 0
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached
