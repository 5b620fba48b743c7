"""The edits of a file as replacements of whole lines, for editors and for reports that contain fixes."""

from __future__ import annotations

import difflib
import io
from dataclasses import dataclass


@dataclass(frozen=True)
class LineChange:
    """`text` replaces the lines from `first` up to but not including `end`. Lines count from 1."""

    first: int
    end: int
    text: str


def replacements(before: str, after: str) -> tuple[LineChange, ...]:
    """The changed lines, in the order of the file."""
    old, new = _lines(before), _lines(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        LineChange(i + 1, j + 1, "".join(new[k:end])) for kind, i, j, k, end in matcher.get_opcodes() if kind != "equal"
    )


def with_replacements(before: str, made: tuple[LineChange, ...]) -> str:
    """A text after the replacements."""
    lines = _lines(before)
    for one in reversed(made):
        lines[one.first - 1 : one.end - 1] = [one.text]
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends, as Python and editors count them. str.splitlines would also split at form feeds."""
    return list(io.StringIO(text, newline=""))
