"""Decides which edits of one function conflict: each is right for the present text, but not after the other edit."""

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
    """The parts of a file that an edit touches.

    Attributes:
        replaced: the spans of text that it replaces.
        removed: the statements that it removes.
        unbound: the names that the removed statements bind.
        bound: the names that the inserted statements bind.
        read: the names in the new text.
    """

    replaced: tuple[TextSpan, ...]
    removed: tuple[TextSpan, ...]
    unbound: frozenset[str]
    bound: frozenset[str]
    read: frozenset[str]

    def conflicts(self, other: Footprint) -> bool:
        """Whether one of the two edits changes something that the other depends on."""
        both_orders = ((self, other), (other, self))
        overlap = any(_overlap(a, b) for x, y in both_orders for a in x.replaced for b in (*y.replaced, *y.removed))
        # One edit may also read a name that the other removes, or both may bind the same new name.
        return overlap or any(x.unbound & y.read for x, y in both_orders) or bool(self.bound & other.bound)


def footprint(edit: Edit, text: SourceText) -> Footprint:
    """Computes what an edit touches."""
    inserted = [new for _, new in edit.insertions]
    removed = [_text_of(span, text) for span in edit.removals]
    return Footprint(
        tuple(span for span, _ in edit.replacements),
        edit.removals,
        frozenset(name for statement in removed for name in _bound_names(statement)),
        frozenset(name for statement in inserted for name in _bound_names(statement)),
        frozenset(_NAME.findall(" ".join([*inserted, *(new.text for _, new in edit.replacements)]))),
    )


def _overlap(a: TextSpan, b: TextSpan) -> bool:
    return (a.line, a.column) < (b.end_line, b.end_column) and (b.line, b.column) < (a.end_line, a.end_column)


def _text_of(span: TextSpan, text: SourceText) -> str:
    lines = text.lines[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"\n".join(lines).decode(errors="replace")


def _bound_names(statement: str) -> set[str]:
    """The names that a statement binds. If it cannot be parsed on its own, all names in it."""
    try:
        return {name for name, _ in bindings(ast.parse(textwrap.dedent(statement)).body)}
    except SyntaxError:
        return set(_NAME.findall(statement))
