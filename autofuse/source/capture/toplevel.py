"""The statements of a script, read as if they were the body of a function without arguments.

What a script computes at its top level stays behind in names that other files may import, and that its functions read
at any time. What is assigned in a loop, or where the file is the program, is taken to be nobody else's. Knows syntax.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk

SYMBOL = "<module>"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def top_level(scope: FileScope) -> Defined | None:
    """The top level of a file as a function; None where it does nothing but define and import."""
    body = scope.tree.body
    if not any(_computes(s) for s in body):
        return None
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    first = body[0]
    function = ast.FunctionDef(SYMBOL, nothing, body, [], lineno=first.lineno, col_offset=0)
    return Defined(SYMBOL, function, None, scope)


def exported(body: list[ast.stmt]) -> set[str]:
    """The names that other files may import."""
    return {name for name, _ in bindings(s for s in body if not _is_own(s))}


def global_names(body: list[ast.stmt]) -> set[str]:
    """Names that some function of the file assigns."""
    return {n for s in body for node in walk(s) if isinstance(node, ast.Global) for n in node.names}


def imported_after(body: list[ast.stmt], line: int) -> bool:
    """Whether the file goes on importing after a line."""
    return any(isinstance(s, (ast.Import, ast.ImportFrom)) and s.lineno > line for s in body)


def _computes(statement: ast.stmt) -> bool:
    return not isinstance(statement, _DEFINITIONS) and any(isinstance(n, ast.Call) for n in walk(statement))


def _is_own(statement: ast.stmt) -> bool:
    """A loop, or `if __name__ == "__main__":`."""
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        return True
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
