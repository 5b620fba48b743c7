"""The ranks of a job under torch.distributed: this process's rank, and one line about each rank."""

from __future__ import annotations

import torch.distributed as dist

from autofuse.results.profile import Rank


def this_rank() -> int | None:
    """Return the number of this process in its job; None without a job."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def gather_ranks(mine: Rank) -> tuple[Rank, ...]:
    """Return the line of every rank, in order; nothing without a job. All ranks must call it."""
    if this_rank() is None:
        return ()
    lines: list[Rank | None] = [None] * dist.get_world_size()
    dist.all_gather_object(lines, mine)
    return tuple(line for line in lines if line is not None)
