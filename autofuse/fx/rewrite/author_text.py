"""Finds the text and the line of a value in the user's source file, for reports."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache

from torch import fx, nn

from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.trace.operation_names import call_text
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.twin import plain_class
from autofuse.ir.graph import ATTRIBUTE, PARAMETER, SINK, Value
from autofuse.match.refusals import AuthorText

_LONG = 60  # characters: a sentence does not show a longer expression


def find_author_text(captured: CapturedTrace, v: Value, returned: Value | None) -> AuthorText:
    """The name or the expression of a value in the source, and its line.

    Args:
        captured: The trace of the module.
        v: The value.
        returned: Used if `v` is the return of the forward: the line is that of the `return` of this value.
    """
    if v.op == PARAMETER:
        return AuthorText(str(v.data))
    if v.op == ATTRIBUTE and v in captured.paths:
        return AuthorText(f"self.{captured.paths[v]}")
    if v.op == SINK:
        text = find_author_text(captured, returned, None).text if returned is not None and returned is not v else ""
        return AuthorText("", _return_line(captured.trace.module, text))
    node = captured.nodes.get(v)
    place = node.meta.get("place") if node is not None else None
    if node is None or place is None:
        return AuthorText()
    return AuthorText(_author_expression(node, place), place.line)


def author_text_at(place: SourceLine | None) -> AuthorText:
    """The condition, the expression or the assigned attribute at a line, and the line."""
    statement = _statement(place) if place is not None else None
    expression = getattr(statement, "test", None) or getattr(statement, "value", None)
    target = _assigned_name(statement) if statement is not None else ""
    text = target if "." in target else ast.unparse(expression) if isinstance(expression, ast.expr) else ""
    return AuthorText(text if len(text) <= _LONG else "", place.line if place is not None else None)


def _author_expression(node: fx.Node, place: SourceLine) -> str:
    statement = _statement(place)
    if statement is None:
        return ""
    if not any(_statement(u.meta["place"]) is statement for u in node.users if u.meta.get("place")):
        return _assigned_name(statement)
    name = call_text(node).removeprefix("self.").removeprefix(".")
    calls = {ast.unparse(n) for n in ast.walk(statement) if isinstance(n, ast.Call) and _called_name(n.func) == name}
    text = calls.pop() if len(calls) == 1 else ""
    return text if len(text) <= _LONG else ""


def _assigned_name(statement: ast.stmt) -> str:
    """The name that a statement assigns to, "" if there are several."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        target = statement.target
    else:
        return ""
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""


def _called_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _statement(place: SourceLine) -> ast.stmt | None:
    """The innermost statement that contains a line."""
    around = [s for s in _statements(place.file) if s.lineno <= place.line <= (s.end_lineno or s.lineno)]
    return min(around, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)


@lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(n for n in ast.walk(tree) if isinstance(n, ast.stmt))


def _return_line(module: nn.Module, text: str) -> int | None:
    """The line of the only `return` of a forward. If there are several, of the only one that contains `text`."""
    code = getattr(inspect.unwrap(plain_class(type(module)).forward), "__code__", None)
    if code is None:
        return None
    functions = [s for s in _statements(code.co_filename) if isinstance(s, ast.FunctionDef) and s.name == code.co_name]
    # co_firstlineno is the line of the first decorator, which precedes the `def`.
    function = min((f for f in functions if f.lineno >= code.co_firstlineno), key=lambda f: f.lineno, default=None)
    returns = list(_returns(function)) if function is not None else []
    if len(returns) > 1:
        returns = [r for r in returns if any(ast.unparse(n) == text for n in ast.walk(r) if isinstance(n, ast.expr))]
    return returns[0].lineno if len(returns) == 1 else None


def _returns(function: ast.AST) -> Iterator[ast.Return]:
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _returns(child)
