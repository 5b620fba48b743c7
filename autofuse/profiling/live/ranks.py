"""The ranks of a job, side by side. Knows torch.distributed as far as it is there, and one line about each rank."""

from __future__ import annotations

import torch.distributed as dist

from autofuse.results.profile import Rank


def this_rank() -> int | None:
    """The number of this process in its job; None where it runs by itself."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def gathered(mine: Rank) -> tuple[Rank, ...]:
    """The line of every rank, in order. All ranks have to call it; empty where there is no job."""
    if this_rank() is None:
        return ()
    lines: list[Rank | None] = [None] * dist.get_world_size()
    dist.all_gather_object(lines, mine)
    return tuple(line for line in lines if line is not None)
