"""How much work one function, or one file, may take: counted in steps of the stages, never by a clock.

A step is a value made, looked up, or visited. What is worked on twice gives the same count on every machine, so the
same functions are declined everywhere. Knows nothing of what a step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class TooMuchWork(Exception):
    """The steps that were allowed are spent: what is being read is left alone, with this as the reason."""

    def __init__(self, allowed: int) -> None:
        super().__init__(f"it takes more than {allowed:,} steps to follow")


class StepBudget:
    """StepBudget that are allowed, and how many of them are left."""

    __slots__ = ("allowed", "left")

    def __init__(self, allowed: int) -> None:
        self.allowed = self.left = allowed

    @property
    def spent(self) -> int:
        return self.allowed - self.left


_now: ContextVar[StepBudget | None] = ContextVar("steps", default=None)


def spend(steps: int = 1) -> None:
    """Count `steps` of work. Raises TooMuchWork where that is more than was allowed; counts nothing outside limits."""
    now = _now.get()
    if now is not None:
        now.left -= steps
        if now.left < 0:
            raise TooMuchWork(now.allowed)


@contextmanager
def limited(allowed: int) -> Iterator[StepBudget]:
    """Inside, no more than `allowed` steps may be spent, nor more than are left of a limit around."""
    around = _now.get()
    steps = StepBudget(allowed if around is None else max(0, min(allowed, around.left)))
    token = _now.set(steps)
    try:
        yield steps
    finally:
        _now.reset(token)
        if around is not None:
            around.left -= min(steps.spent, steps.allowed)
