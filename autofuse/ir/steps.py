"""Limits the work for one function or one file, by counting steps.

A step is one value created, looked up or visited. No clock is read, so the same functions are declined on every
machine. This file does not know what a step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class TooMuchWork(Exception):
    """The allowed steps are spent. The function or file is not analysed further, and this is the reason."""

    def __init__(self, allowed: int) -> None:
        super().__init__(f"it takes more than {allowed:,} steps to follow")


class StepBudget:
    """The number of allowed steps, and how many of them are left."""

    __slots__ = ("allowed", "left")

    def __init__(self, allowed: int) -> None:
        self.allowed = self.left = allowed

    @property
    def spent(self) -> int:
        """The number of steps that were taken."""
        return self.allowed - self.left


_budget: ContextVar[StepBudget | None] = ContextVar("steps", default=None)


def spend(steps: int = 1) -> None:
    """Count `steps` of work. Outside of `limit_steps`, nothing is counted.

    Raises:
        TooMuchWork: more steps are spent than allowed.
    """
    budget = _budget.get()
    if budget is not None:
        budget.left -= steps
        if budget.left < 0:
            raise TooMuchWork(budget.allowed)


@contextmanager
def limit_steps(allowed: int) -> Iterator[StepBudget]:
    """Allow at most `allowed` steps inside the block, and at most the steps left in an outer block."""
    outer = _budget.get()
    steps = StepBudget(allowed if outer is None else max(0, min(allowed, outer.left)))
    token = _budget.set(steps)
    try:
        yield steps
    finally:
        _budget.reset(token)
        if outer is not None:
            outer.left -= min(steps.spent, steps.allowed)
