"""Adds the imports that edits need, once, after the imports that are there.

Knows the statements of a module and their lines. Decides nothing about how a name is spelled (capture/imports.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autofuse.source.write.statement_ranges import first_line, lines_of


def with_imports(text: str, statements: Iterable[str]) -> str:
    """The text of a module with each import statement that it lacks, after its first run of imports."""
    wanted = list(dict.fromkeys(statements))
    if not wanted:
        return text
    tree = ast.parse(text)
    there = {ast.unparse(s) for s in tree.body if _is_import(s)}
    missing = [s for s in wanted if s not in there]
    if not missing:
        return text
    lines = lines_of(text)
    before = _place(tree.body)
    at = _line_after(tree.body, before)
    newline = next((line[len(line.rstrip("\r\n")) :] for line in lines if line.endswith(("\r", "\n"))), "\n")
    added = [s + newline for s in missing]
    follows = at < len(lines) and bool(lines[at].strip())
    if not before and follows:
        added = [*added, newline]
    elif before and not _is_import(tree.body[before - 1]):  # behind a docstring
        added = [newline, *added, *([newline] if follows else [])]
    if at and not lines[at - 1].endswith(("\r", "\n")):
        lines[at - 1] += newline
    return "".join([*lines[:at], *added, *lines[at:]])


def _place(body: list[ast.stmt]) -> int:
    """How many statements stand before: the imports at the top, the docstring and `from __future__` among them."""
    last = 0
    for i, s in enumerate(body):
        if _is_import(s) or i == 0 and _is_docstring(s):
            last = i + 1
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
    return last


def _line_after(body: list[ast.stmt], count: int) -> int:
    """How many lines stand before the statement `count`, and behind the one before it."""
    if not count:
        return first_line(body[0]) - 1 if body else 0
    end = body[count - 1].end_lineno or 0
    for following in body[count:]:
        if first_line(following) > end:
            break
        end = following.end_lineno or end  # it stands on the same line, behind a semicolon
    return end


def _is_import(s: ast.stmt) -> bool:
    return isinstance(s, (ast.Import, ast.ImportFrom))


def _is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
