"""How the author of a file wrote a value, and where: for telling them about it.

Knows where values stand. Edits nothing.
"""

from __future__ import annotations

import ast

from autofuse.ir.graph import PARAMETER, Value
from autofuse.match.refusals import AuthorText
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.targets.express import places_of
from autofuse.source.targets.printing import SourceText

_LONG = 60  # of an expression in a sentence


def written(captured: CapturedFunction, text: SourceText, v: Value) -> AuthorText:
    """The name that a value is given, else its expression, and its line; for what leaves a function, where it does."""
    if v in captured.lines:
        return AuthorText("", captured.lines[v])
    if v.op == PARAMETER:
        return AuthorText(str(v.data))
    place = next(iter([*places_of(captured, v), *captured.places.get(v, [])]), None)
    if place is None:
        return AuthorText()
    name = _assigned(place.statement, place.node)
    expression = text.of(place.node)
    return AuthorText(name or (expression if len(expression) <= _LONG else ""), place.node.lineno)


def _assigned(statement: ast.stmt, node: ast.expr) -> str:
    """The one name that a statement gives the whole of an expression."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        target = statement.target
    else:
        return ""
    whole = statement.value is node or isinstance(statement, ast.AugAssign)
    return ast.unparse(target) if whole and isinstance(target, (ast.Name, ast.Attribute)) else ""
