"""Reads the functions of a file one by one. A function that cannot be read is skipped with a reason.

Each function has a budget of steps (autofuse/ir/steps.py) that grows with the size of its text. Each file has one too.
A function becomes a SkippedFunction if it exceeds its budget, is nested too deeply, or makes autofuse fail. The rest
of the file is read as usual. When the budget of the file is spent, the functions that follow are skipped together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from autofuse.ir.steps import TooMuchWork, limit_steps
from autofuse.rule import RuleError

_Result = TypeVar("_Result")

# A step takes about 5 microseconds. Real functions need up to 8 steps for each byte of their text. Only long rows of
# hand-written norms need 100.
STEPS, STEPS_PER_BYTE = 2_000, 20  # the budget of one function
MAX_STEPS = 200_000  # the limit for any function, about a second
MIN_STEPS = 500  # what a function gets at least, as long as its file has steps
SPARE_STEPS = 150_000  # a reserve for each file: functions that exceed their own budget share it
FILE_STEPS = 600_000  # the budget of one file, two to three seconds; the files of transformers need up to 500,000


@dataclass(frozen=True)
class SkippedFunction:
    """A function that autofuse leaves alone because it cannot read it.

    `why` completes the message "it is left alone: ...". `error` is the exception if autofuse itself fails. With
    `others`, as many functions that follow are left alone for the same reason, up to the function `last`.
    """

    line: int
    symbol: str
    why: str = "it is nested too deeply to follow"
    error: Exception | None = None
    others: int = 0
    last: str = ""


class FileReader:
    """Reads the functions of one file, each within its budget.

    Args:
        skipped: collects the functions that cannot be read. With None, exceptions of autofuse itself are raised; the
            tests of rules need to see them.
    """

    def __init__(self, skipped: list[SkippedFunction] | None) -> None:
        self.skipped = [] if skipped is None else skipped
        self.raises = skipped is None
        self.remaining, self.spare = FILE_STEPS, SPARE_STEPS
        self._too_late: SkippedFunction | None = None

    def close(self) -> None:
        """Reports the functions that were left because the budget of the file was spent."""
        if self._too_late is not None:
            self.skipped.append(self._too_late)

    def _leave(self, line: int, symbol: str) -> None:
        """Leaves a function alone because its file has no steps left."""
        first = self._too_late
        self._too_late = (
            SkippedFunction(line, symbol, f"the file takes more than {FILE_STEPS:,} steps to follow")
            if first is None
            else replace(first, others=first.others + 1, last=symbol)
        )

    def read(self, read: Callable[[], list[_Result]], line: int, symbol: str, size: int) -> list[_Result]:
        """Returns the result of `read`, which reads a function of `size` bytes; an empty list if it fails."""
        if self.remaining <= 0:
            self._leave(line, symbol)
            return []
        budget = min(STEPS + STEPS_PER_BYTE * size, MAX_STEPS)
        limit = max(self.remaining // 2, MIN_STEPS)  # leave half of the budget for the functions that follow
        with limit_steps(min(budget + self.spare, limit, MAX_STEPS)) as steps:
            try:
                return read()
            except TooMuchWork as reason:
                if limit < budget and not self.raises:  # the steps of the file are spent, not those of the function
                    self.remaining = 0
                    self._leave(line, symbol)
                else:
                    self.skipped.append(SkippedFunction(line, symbol, str(reason)))
            except (RecursionError, MemoryError):
                self.skipped.append(SkippedFunction(line, symbol))
            except RuleError:
                raise
            except Exception as error:
                if self.raises:
                    raise
                self.skipped.append(SkippedFunction(line, symbol, "autofuse fails on it", error))
            finally:
                spent = min(steps.spent, steps.allowed)
                self.remaining -= spent
                self.spare -= max(0, spent - budget)
        return []
