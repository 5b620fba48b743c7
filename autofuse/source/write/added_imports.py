"""Adds the imports that edits need after the existing imports of a module.

capture/imports.py decides how a name is spelled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.source.write.statement_ranges import first_line, lines_of


def add_imports(text: str, statements: Iterable[str]) -> str:
    """Returns the text of a module with the import statements that it lacks, after its first run of imports."""
    needed = list(dict.fromkeys(statements))
    if not needed:
        return text
    tree = ast.parse(text)
    existing = {ast.unparse(s) for s in tree.body if _is_import(s)}
    missing = [s for s in needed if s not in existing]
    if not missing:
        return text
    lines = lines_of(text)
    count = _statements_before(tree.body)
    index = _lines_before(tree.body, count)
    newline = next((line[len(line.rstrip("\r\n")) :] for line in lines if line.endswith(("\r", "\n"))), "\n")
    added = [s + newline for s in missing]
    code_follows = index < len(lines) and bool(lines[index].strip())
    if not count and code_follows:
        added = [*added, newline]
    elif count and not _is_import(tree.body[count - 1]):  # after a docstring
        added = [newline, *added, *([newline] if code_follows else [])]
    if index and not lines[index - 1].endswith(("\r", "\n")):
        lines[index - 1] += newline
    return "".join([*lines[:index], *added, *lines[index:]])


def _statements_before(body: list[ast.stmt]) -> int:
    """The number of statements before the insertion: the docstring and the imports at the top."""
    last = 0
    for i, s in enumerate(body):
        if _is_import(s) or i == 0 and _is_docstring(s):
            last = i + 1
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
    return last


def _lines_before(body: list[ast.stmt], count: int) -> int:
    """The number of lines before the insertion after `count` statements."""
    if not count:
        return first_line(body[0]) - 1 if body else 0
    end = body[count - 1].end_lineno or 0
    for following in body[count:]:
        if first_line(following) > end:
            break
        end = following.end_lineno or end  # on the same line, after a semicolon
    return end


def _is_import(s: ast.stmt) -> bool:
    return isinstance(s, (ast.Import, ast.ImportFrom))


def _is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
