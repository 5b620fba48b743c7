"""Adds the imports that edits need, once, after the imports that are there.

Knows module-level statements. Decides nothing about how a name is spelled (imports.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def with_imports(module: cst.Module, statements: Iterable[str]) -> cst.Module:
    """`module` with each import statement that it lacks, after its first run of imports."""
    wanted = [s for s in dict.fromkeys(statements) if not _has(module, s)]
    if not wanted:
        return module
    lines = [cst.parse_statement(s, config=module.config_for_parsing) for s in wanted]
    at = _place(module)
    body = list(module.body)
    if at == 0 and body:
        body[0] = _apart(body[0])
    elif at < len(body) and not _is_import(body[at - 1]):
        lines[0] = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        body[at] = _apart(body[at])
    return module.with_changes(body=[*body[:at], *lines, *body[at:]])


def _place(module: cst.Module) -> int:
    """After the imports at the top: the docstring and `from __future__` come first."""
    last = 0
    for i, s in enumerate(module.body):
        if _is_import(s) or i == 0 and _is_docstring(s):
            last = i + 1
        elif isinstance(s, (cst.FunctionDef, cst.ClassDef)):
            break
    return last


def _is_import(s: cst.BaseStatement) -> bool:
    return isinstance(s, cst.SimpleStatementLine) and any(isinstance(b, (cst.Import, cst.ImportFrom)) for b in s.body)


def _is_docstring(s: cst.BaseStatement) -> bool:
    return (
        isinstance(s, cst.SimpleStatementLine)
        and isinstance(s.body[0], cst.Expr)
        and isinstance(s.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _has(module: cst.Module, statement: str) -> bool:
    return any(_is_import(s) and module.code_for_node(s).strip() == statement for s in module.body)


def _apart(s: _Statement) -> _Statement:
    """`s` with a blank line before it."""
    leading = list(getattr(s, "leading_lines", ()))
    if leading and leading[0].comment is None:
        return s
    return s.with_changes(leading_lines=[cst.EmptyLine(indent=False), *leading])
