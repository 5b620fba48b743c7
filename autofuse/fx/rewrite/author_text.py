"""How the author of a module wrote a value, and where: for telling them about it.

Reads the file a place is in, as far as it is to be had. Knows fx nodes and syntax; decides nothing.
"""

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

_LONG = 60  # of an expression in a sentence


def written(captured: CapturedTrace, v: Value, about: Value | None) -> AuthorText:
    """The name that a value is given, else its expression, and its line; of a return, the line that returns `about`."""
    if v.op == PARAMETER:
        return AuthorText(str(v.data))
    if v.op == ATTRIBUTE and v in captured.paths:
        return AuthorText(f"self.{captured.paths[v]}")
    if v.op == SINK:
        text = written(captured, about, None).text if about is not None and about is not v else ""
        return AuthorText("", _returning(captured.trace.module, text))
    node = captured.nodes.get(v)
    place = node.meta.get("place") if node is not None else None
    if node is None or place is None:
        return AuthorText()
    return AuthorText(_text(node, place), place.line)


def written_at(place: SourceLine | None) -> AuthorText:
    """What is asked, computed or stored in an attribute at a place, and its line."""
    statement = _statement(place) if place is not None else None
    asked = getattr(statement, "test", None) or getattr(statement, "value", None)
    stored = _assigned(statement) if statement is not None else ""
    text = stored if "." in stored else ast.unparse(asked) if isinstance(asked, ast.expr) else ""
    return AuthorText(text if len(text) <= _LONG else "", place.line if place is not None else None)


def _text(node: fx.Node, place: SourceLine) -> str:
    statement = _statement(place)
    if statement is None:
        return ""
    if not any(_statement(u.meta["place"]) is statement for u in node.users if u.meta.get("place")):
        return _assigned(statement)
    name = call_text(node).removeprefix("self.").removeprefix(".")
    calls = {ast.unparse(n) for n in ast.walk(statement) if isinstance(n, ast.Call) and _last(n.func) == name}
    text = calls.pop() if len(calls) == 1 else ""
    return text if len(text) <= _LONG else ""


def _assigned(statement: ast.stmt) -> str:
    """The one name that a statement gives its value."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        target = statement.target
    else:
        return ""
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _statement(place: SourceLine) -> ast.stmt | None:
    """The innermost statement around a line."""
    around = [s for s in _statements(place.file) if s.lineno <= place.line <= (s.end_lineno or s.lineno)]
    return min(around, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)


@lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(n for n in ast.walk(tree) if isinstance(n, ast.stmt))


def _returning(module: nn.Module, text: str) -> int | None:
    """The line of the one `return` of a forward, of those that mention `text` if there are several."""
    code = getattr(inspect.unwrap(plain_class(type(module)).forward), "__code__", None)
    if code is None:
        return None
    functions = [s for s in _statements(code.co_filename) if isinstance(s, ast.FunctionDef) and s.name == code.co_name]
    function = min((f for f in functions if f.lineno >= code.co_firstlineno), key=lambda f: f.lineno, default=None)
    found = list(_returns(function)) if function is not None else []
    if len(found) > 1:
        found = [r for r in found if any(ast.unparse(n) == text for n in ast.walk(r) if isinstance(n, ast.expr))]
    return found[0].lineno if len(found) == 1 else None


def _returns(function: ast.AST) -> Iterator[ast.Return]:
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _returns(child)
