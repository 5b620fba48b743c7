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

# Real functions take 2 to 20 steps for each byte of their text, and those that are all hand-written layers up to 100.
FUNCTION_STEPS, FUNCTION_STEPS_A_BYTE = 200_000, 100
FILE_STEPS, FILE_STEPS_A_BYTE = 1_000_000, 40


@dataclass(frozen=True)
class UnreadFunction:
    """A function that is not read. `why` completes "it is left alone: ..."; `error` is ours, if there is one."""

    line: int
    symbol: str
    why: str = "it is nested too deeply to follow"
    error: Exception | None = None


def function_steps(size: int) -> int:
    """How many steps a function of `size` bytes may take."""
    return FUNCTION_STEPS + FUNCTION_STEPS_A_BYTE * size


def file_steps(size: int) -> int:
    """How many steps all functions of a file of `size` bytes may take together."""
    return FILE_STEPS + FILE_STEPS_A_BYTE * size


def read_or_told(
    read: Callable[[], list[_Read]], line: int, symbol: str, size: int, unread: list[UnreadFunction] | None
) -> list[_Read]:
    """What `read` gives within the steps of a function of `size` bytes; nothing, and a word in `unread`, if it cannot.

    Without `unread` our own errors are raised, as whoever tests rules wants them.
    """
    told = unread if unread is not None else []
    try:
        with limited(function_steps(size)):
            return read()
    except TooMuchWork as reason:
        told.append(UnreadFunction(line, symbol, str(reason)))
    except (RecursionError, MemoryError):
        told.append(UnreadFunction(line, symbol))
    except RuleError:
        raise
    except Exception as error:
        if unread is None:
            raise
        told.append(UnreadFunction(line, symbol, "autofuse fails on it", error))
    return []
