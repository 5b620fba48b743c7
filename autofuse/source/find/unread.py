"""What becomes of a function that cannot be read: it is left alone, with the reason, and the rest of the file goes on.

A function has a budget of steps (autofuse/ir/steps.py) that grows with its text, and so has a file. A function that is
over budget, that is nested too deeply, or on which we fail, is told as an UnreadFunction. Knows nothing of what
reading is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autofuse.ir.steps import TooMuchWork, limited
from autofuse.rule import RuleError

_Read = TypeVar("_Read")

# A step takes about 5 microseconds. Real functions take up to 8 for each byte of their text; nothing but hand-written
# norms, one after the other, take 100.
STEPS, STEPS_A_BYTE = 2_000, 20  # that each function may take
MOST_STEPS = 200_000  # that any function may take, however long it is: about a second
LEAST_STEPS = 500  # that are left for a function of a file whose steps are spent
SPARE_STEPS = 150_000  # that those functions of a file which need more share
FILE_STEPS, FILE_STEPS_A_BYTE = 10_000_000, 2  # that a file may take, however many functions it has


@dataclass(frozen=True)
class UnreadFunction:
    """A function that is not read. `why` completes "it is left alone: ..."; `error` is ours, if there is one."""

    line: int
    symbol: str
    why: str = "it is nested too deeply to follow"
    error: Exception | None = None


class FileReading:
    """Reads the functions of a file of `size` bytes, each within its steps; what cannot be read goes to `unread`.

    Without `unread` our own errors are raised: tests of rules want to see them.
    """

    def __init__(self, size: int, unread: list[UnreadFunction] | None) -> None:
        self.unread = [] if unread is None else unread
        self.raises = unread is None
        self.left, self.spare = FILE_STEPS + FILE_STEPS_A_BYTE * size, SPARE_STEPS

    def read(self, read: Callable[[], list[_Read]], line: int, symbol: str, size: int) -> list[_Read]:
        """What `read` makes of a function of `size` bytes; nothing where it cannot be read."""
        own = min(STEPS + STEPS_A_BYTE * size, MOST_STEPS)
        most = max(self.left // 2, LEAST_STEPS)  # no function takes what all after it need
        with limited(min(own + self.spare, most, MOST_STEPS)) as steps:
            try:
                return read()
            except TooMuchWork as reason:
                self.unread.append(UnreadFunction(line, symbol, str(reason)))
            except (RecursionError, MemoryError):
                self.unread.append(UnreadFunction(line, symbol))
            except RuleError:
                raise
            except Exception as error:
                if self.raises:
                    raise
                self.unread.append(UnreadFunction(line, symbol, "autofuse fails on it", error))
            finally:
                spent = min(steps.spent, steps.allowed)
                self.left -= spent
                self.spare -= max(0, spent - own)
        return []
