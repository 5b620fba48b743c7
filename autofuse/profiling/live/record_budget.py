"""Decides how many steps are recorded: as many as fit into a time budget. Shares of few steps depend on chance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autofuse.profiling.live.ranks import this_rank

BUDGET = 2.0  # seconds of steps without the recorder
FEWEST, MOST = 3, 20
IN_A_JOB = 10  # steps: all ranks must record the same number, and their times differ


def steps_to_record(wished: int | None, seconds: Sequence[float]) -> int:
    """Return how many steps to record: `wished` if given, else as many steps of `seconds` as fit into the budget."""
    if wished is not None:
        return wished
    if this_rank() is not None:
        return IN_A_JOB
    middle = median(seconds) if seconds else BUDGET
    return max(FEWEST, min(MOST, int(BUDGET / middle))) if middle > 0 else MOST
