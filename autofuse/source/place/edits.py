"""The data of an edit: spans of text to replace, statements to remove or insert, arguments and imports to add.

Positions are those of the ast module. placement.py makes edits; write/file_edits.py applies them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autofuse.source.targets import TargetCall


@dataclass(frozen=True, order=True)
class TextSpan:
    """The position of a node as in ast: lines from 1, columns in UTF-8 bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


def span_of(node: ast.expr | ast.stmt) -> TextSpan:
    """The span of a node."""
    return TextSpan(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def is_inside(inner: TextSpan, outer: TextSpan) -> bool:
    """Whether a span is part of another, or equal to it."""
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


def is_within(node: ast.expr, outer: ast.expr) -> bool:
    """Whether the text of a node is part of that of another, or equal to it."""
    return is_inside(span_of(node), span_of(outer))


def start_of(statement: ast.stmt) -> TextSpan:
    """The empty span at the start of a statement, for an insertion that leaves the statement unchanged."""
    return TextSpan(statement.lineno, statement.col_offset, statement.lineno, statement.col_offset)


@dataclass(frozen=True)
class NewText:
    """Text that replaces an expression. `call` is the call in it; a long call is printed with one argument per line."""

    text: str
    call: TargetCall | None = None


@dataclass(frozen=True)
class Edit:
    """The changes of a file. Spans refer to the text before the edit.

    Attributes:
        replacements: expressions and their new text.
        removals: statements to remove.
        pure_tests: `if` statements without side effects, which are removed too if nothing is left in them.
        insertions: statements to insert before the statement at a span.
        additions: calls, with the name and the text of a keyword argument to add.
        imports: import statements to add.
        unsafe: what the edit assumes; "" if it is safe.
        becomes: the name of the function in the new call.
        omissions: calls, with the span of the value of an argument to remove.
    """

    replacements: tuple[tuple[TextSpan, NewText], ...]
    removals: tuple[TextSpan, ...] = ()
    pure_tests: tuple[TextSpan, ...] = ()
    insertions: tuple[tuple[TextSpan, str], ...] = ()
    additions: tuple[tuple[TextSpan, str, str], ...] = ()
    imports: tuple[str, ...] = ()
    unsafe: str = ""
    becomes: str = ""
    omissions: tuple[tuple[TextSpan, TextSpan], ...] = ()

    @property
    def spans(self) -> tuple[TextSpan, ...]:
        """All spans that the edit changes."""
        others = [i[0] for i in self.insertions] + [a[0] for a in self.additions] + [o[0] for o in self.omissions]
        return (*self.removals, *(r[0] for r in self.replacements), *others)


def shift_lines(edit: Edit, lines: int) -> Edit:
    """A copy of an edit with all positions moved down by `lines`."""

    def shift(part: object) -> object:
        if isinstance(part, TextSpan):
            return replace(part, line=part.line + lines, end_line=part.end_line + lines)
        return tuple(map(shift, part)) if isinstance(part, tuple) else part

    return replace(edit, **{name: shift(value) for name, value in vars(edit).items()})  # type: ignore[arg-type]


def merge_edits(edits: Iterable[Edit]) -> Edit:
    """Merges several edits of one file into one."""
    all_edits = list(edits)
    return Edit(
        # dict.fromkeys removes duplicates and keeps the order.
        tuple(dict.fromkeys(r for e in all_edits for r in e.replacements)),
        tuple(dict.fromkeys(r for e in all_edits for r in e.removals)),
        tuple(dict.fromkeys(r for e in all_edits for r in e.pure_tests)),
        tuple(dict.fromkeys(i for e in all_edits for i in e.insertions)),
        tuple(dict.fromkeys(a for e in all_edits for a in e.additions)),
        tuple(dict.fromkeys(i for e in all_edits for i in e.imports)),
        omissions=tuple(dict.fromkeys(o for e in all_edits for o in e.omissions)),
    )
