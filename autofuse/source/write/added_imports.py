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
    for statement in list(missing):
        if (added_text := _add_to_block(statement, tree, text)) is not None:
            missing.remove(statement)
            text, tree = added_text, ast.parse(added_text)
    if not missing:
        return text
    lines = lines_of(text)
    count = _without_relative_imports(tree.body, _statements_before(tree.body))
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


def _add_to_block(statement: str, tree: ast.Module, text: str) -> str | None:
    """The text with the statement at its sorted position among the imports around the last import of torch.

    Returns None if there is no such block, or if it is not sorted as isort sorts: then nothing is moved into it.
    """
    block = _torch_block(tree.body)
    keys = [_sort_key(s) for s in block]
    new = ast.parse(statement).body[0]
    if not block or keys != sorted(keys) or not _is_import(new):
        return None
    index = sum(key < _sort_key(new) for key in keys)
    lines = lines_of(text)
    at = first_line(block[index]) - 1 if index < len(block) else block[-1].end_lineno or 0
    if index == len(block) and not lines[at - 1].endswith(("\r", "\n")):
        return None
    newline = lines[at - 1 if at else 0][len(lines[at - 1 if at else 0].rstrip("\r\n")) :]
    return "".join([*lines[:at], statement + newline, *lines[at:]])


def _torch_block(body: list[ast.stmt]) -> list[ast.stmt]:
    """The absolute imports on adjacent lines around the last import of torch before the first function or class."""
    blocks: list[list[ast.stmt]] = [[]]
    for s in body[: _statements_before(body)]:
        is_absolute = _is_import(s) and not getattr(s, "level", 0)
        follows = bool(blocks[-1]) and s.lineno == (blocks[-1][-1].end_lineno or 0) + 1
        if not is_absolute:
            blocks.append([])
        elif follows:
            blocks[-1].append(s)
        else:
            blocks.append([s])
    return next((b for b in reversed(blocks) if any(_root(s) == "torch" for s in b)), [])


def _sort_key(s: ast.stmt) -> tuple[bool, str]:
    return isinstance(s, ast.ImportFrom), _module(s).lower()


def _module(s: ast.stmt) -> str:
    return s.names[0].name if isinstance(s, ast.Import) else getattr(s, "module", "") or ""


def _root(s: ast.stmt) -> str:
    return _module(s).partition(".")[0]


def _statements_before(body: list[ast.stmt]) -> int:
    """The number of statements before the insertion: the docstring and the imports at the top."""
    last = 0
    for i, s in enumerate(body):
        if _is_import(s) or i == 0 and _is_docstring(s):
            last = i + 1
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
    return last


def _without_relative_imports(body: list[ast.stmt], count: int) -> int:
    """`count` without the relative imports at the end, if absolute imports precede them: these usually come last."""
    absolute = count
    while absolute and _is_import(body[absolute - 1]) and getattr(body[absolute - 1], "level", 0):
        absolute -= 1
    return absolute if absolute and _is_import(body[absolute - 1]) else count


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
