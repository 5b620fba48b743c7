"""Treats the top-level statements of a file as the body of a function without arguments.

The names that these statements assign exist after they run: other files may import them, and functions of the file may
read them at any time. Names that are assigned in a loop or under `if __name__ == "__main__":` count as private.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import bindings
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.capture.syntax import walk

SYMBOL = "<module>"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def top_level_function(scope: FileScope) -> DefinedFunction | None:
    """Return the top level of a file as a function; None if it computes nothing."""
    body = scope.tree.body
    if not any(_computes(s) for s in body):
        return None
    no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    first = body[0]
    function = ast.FunctionDef(SYMBOL, no_arguments, body, [], lineno=first.lineno, col_offset=0)
    return DefinedFunction(SYMBOL, function, None, scope)


def exported_names(body: list[ast.stmt]) -> set[str]:
    """Return the names at the top level that other files may import."""
    return {name for name, _ in bindings(s for s in body if not _is_private(s))}


def global_names(body: list[ast.stmt]) -> set[str]:
    """Return the names that functions of the file declare global."""
    return {n for s in body for node in walk(s) if isinstance(node, ast.Global) for n in node.names}


def has_import_after(body: list[ast.stmt], line: int) -> bool:
    """Whether there is an import at the top level after a line."""
    return any(isinstance(s, (ast.Import, ast.ImportFrom)) and s.lineno > line for s in body)


def _computes(statement: ast.stmt) -> bool:
    return not isinstance(statement, _DEFINITIONS) and any(isinstance(n, ast.Call) for n in walk(statement))


def _is_private(statement: ast.stmt) -> bool:
    """Whether a statement is a loop or `if __name__ == "__main__":`."""
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        return True
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
