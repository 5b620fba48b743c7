"""How many steps are recorded: as many as a budget of time allows, for shares of few steps are chance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autofuse.profiling.live.ranks import this_rank

BUDGET = 2.0  # seconds of steps, as long as they are without the recorder
FEWEST, MOST = 3, 20
IN_A_JOB = 10  # steps: all ranks have to record the same ones, and each has times of its own


def steps_to_record(wished: int | None, seconds: Sequence[float]) -> int:
    """`wished`, where somebody said how many; else as many of steps that take `seconds` as fit the budget."""
    if wished is not None:
        return wished
    if this_rank() is not None:
        return IN_A_JOB
    middle = median(seconds) if seconds else BUDGET
    return max(FEWEST, min(MOST, int(BUDGET / middle))) if middle > 0 else MOST
