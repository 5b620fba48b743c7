"""What an edit does to a file, as replacements of whole lines: for editors and for reports that carry fixes."""

from __future__ import annotations

import difflib
import io
from dataclasses import dataclass


@dataclass(frozen=True)
class LineChange:
    """The lines from `first` up to but not including `end`, counted from 1, become `text`."""

    first: int
    end: int
    text: str


def replacements(before: str, after: str) -> tuple[LineChange, ...]:
    """The lines that differ, in the order of the file."""
    old, new = _lines(before), _lines(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        LineChange(i + 1, j + 1, "".join(new[k:end])) for kind, i, j, k, end in matcher.get_opcodes() if kind != "equal"
    )


def replaced(before: str, made: tuple[LineChange, ...]) -> str:
    """A text with replacements made."""
    lines = _lines(before)
    for one in reversed(made):
        lines[one.first - 1 : one.end - 1] = [one.text]
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends, as Python and editors count them: str.splitlines would also break at form feeds."""
    return list(io.StringIO(text, newline=""))
