"""Which edits of one function cannot be made in one pass: each is right for the text as it stands, not for the other's.

Knows edits and text; knows no rules.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass

from autofuse.source.capture.bindings import bindings
from autofuse.source.place.edits import Edit, TextSpan
from autofuse.source.targets.printing import SourceText

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Footprint:
    """What an edit touches: the text it replaces, the names it no longer binds, and the names its own text has."""

    replaced: tuple[TextSpan, ...]
    removed: tuple[TextSpan, ...]
    unbound: frozenset[str]
    bound: frozenset[str]
    read: frozenset[str]

    def conflicts(self, other: Footprint) -> bool:
        """Whether one of two edits changes what the other was made for."""
        both = ((self, other), (other, self))
        overlap = any(_overlap(a, b) for x, y in both for a in x.replaced for b in (*y.replaced, *y.removed))
        return overlap or any(x.unbound & y.read for x, y in both) or bool(self.bound & other.bound)


def footprint(edit: Edit, text: SourceText) -> Footprint:
    inserted = [new for _, new in edit.insertions]
    removed = [_text_of(span, text) for span in edit.removals]
    return Footprint(
        tuple(span for span, _ in edit.replacements),
        edit.removals,
        frozenset(name for statement in removed for name in _bound(statement)),
        frozenset(name for statement in inserted for name in _bound(statement)),
        frozenset(_NAME.findall(" ".join([*inserted, *(new.text for _, new in edit.replacements)]))),
    )


def _overlap(a: TextSpan, b: TextSpan) -> bool:
    return (a.line, a.column) < (b.end_line, b.end_column) and (b.line, b.column) < (a.end_line, a.end_column)


def _text_of(span: TextSpan, text: SourceText) -> str:
    lines = text.lines[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"\n".join(lines).decode(errors="replace")


def _bound(statement: str) -> set[str]:
    """Names that a statement binds; every name in it where it cannot be read on its own."""
    try:
        return {name for name, _ in bindings(ast.parse(textwrap.dedent(statement)).body)}
    except SyntaxError:
        return set(_NAME.findall(statement))
