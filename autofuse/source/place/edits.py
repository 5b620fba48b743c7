"""What changes in a file, as plain data: which text stands in place of what, and which statements go.

Positions are those of ast. Knows neither where an edit comes from (placement.py) nor how it is made
(write/file_edits.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autofuse.source.targets import TargetCall


@dataclass(frozen=True, order=True)
class TextSpan:
    """Where a node stands, as ast counts: lines from 1, columns in UTF-8 bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


def span_of(node: ast.expr | ast.stmt) -> TextSpan:
    return TextSpan(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def is_inside(inner: TextSpan, outer: TextSpan) -> bool:
    """Whether a piece of text lies within another, or is the same."""
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


def start_of(statement: ast.stmt) -> TextSpan:
    """Where a statement begins, for something put before it: what stands inside it is not touched."""
    return TextSpan(statement.lineno, statement.col_offset, statement.lineno, statement.col_offset)


@dataclass(frozen=True)
class NewText:
    """Text in place of an expression. `call` is the call in it, for printing one argument a line."""

    text: str
    call: TargetCall | None = None


@dataclass(frozen=True)
class Edit:
    """What changes in a file; statements that go are named by where they stand."""

    replacements: tuple[tuple[TextSpan, NewText], ...]
    removals: tuple[TextSpan, ...] = ()
    pure_tests: tuple[TextSpan, ...] = ()  # `if` statements that may go when nothing is left in them
    insertions: tuple[tuple[TextSpan, str], ...] = ()  # a statement to put before the one that stands there
    additions: tuple[tuple[TextSpan, str, str], ...] = ()  # a keyword argument to add to the call that stands there
    imports: tuple[str, ...] = ()
    unsafe: str = ""  # what the edit assumes, if anything
    becomes: str = ""  # the function that is called instead
    omissions: tuple[tuple[TextSpan, TextSpan], ...] = ()  # a call, and the value of an argument to leave out of it

    @property
    def spans(self) -> tuple[TextSpan, ...]:
        """Where something changes."""
        beside = [i[0] for i in self.insertions] + [a[0] for a in self.additions] + [o[0] for o in self.omissions]
        return (*self.removals, *(r[0] for r in self.replacements), *beside)


def moved(edit: Edit, lines: int) -> Edit:
    """An edit whose every place lies `lines` further down."""

    def shifted(part: object) -> object:
        if isinstance(part, TextSpan):
            return replace(part, line=part.line + lines, end_line=part.end_line + lines)
        return tuple(map(shifted, part)) if isinstance(part, tuple) else part

    return replace(edit, **{name: shifted(value) for name, value in vars(edit).items()})  # type: ignore[arg-type]


def joined(edits: Iterable[Edit]) -> Edit:
    """Several edits of one file as one."""
    every = list(edits)
    return Edit(
        tuple(dict.fromkeys(r for e in every for r in e.replacements)),
        tuple(dict.fromkeys(r for e in every for r in e.removals)),
        tuple(dict.fromkeys(r for e in every for r in e.pure_tests)),
        tuple(dict.fromkeys(i for e in every for i in e.insertions)),
        tuple(dict.fromkeys(a for e in every for a in e.additions)),
        tuple(dict.fromkeys(i for e in every for i in e.imports)),
        omissions=tuple(dict.fromkeys(o for e in every for o in e.omissions)),
    )
