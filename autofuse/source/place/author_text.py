"""Finds how the author of a file wrote a value, and on which line, for use in messages."""

from __future__ import annotations

import ast

from autofuse.ir.graph import PARAMETER, Value
from autofuse.match.refusals import AuthorText
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.targets.printing import SourceText
from autofuse.source.targets.speller import computing_places

_MAX_TEXT = 60  # characters of an expression in a message


def author_text(captured: CapturedFunction, text: SourceText, v: Value) -> AuthorText:
    """The name that the code assigns a value to, or else its expression, with the line.

    For a value that leaves the function, the line is where it does.
    """
    if v in captured.lines:
        return AuthorText("", captured.lines[v])
    if v.op == PARAMETER:
        return AuthorText(str(v.data))
    place = next(iter([*computing_places(captured, v), *captured.positions.get(v, [])]), None)
    if place is None:
        return AuthorText()
    name = _target_name(place.statement, place.node)
    expression = text.of(place.node)
    return AuthorText(name or (expression if len(expression) <= _MAX_TEXT else ""), place.node.lineno)


def _target_name(statement: ast.stmt, node: ast.expr) -> str:
    """The name that a statement assigns exactly this expression to; "" if it does not."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        target = statement.target
    else:
        return ""
    is_value = statement.value is node or isinstance(statement, ast.AugAssign)
    return ast.unparse(target) if is_value and isinstance(target, (ast.Name, ast.Attribute)) else ""
