"""Equivalent layout of the source. These steps change text, after all other steps."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from itertools import pairwise

Rewrite = Callable[[], str]


def comment_a_line(text: str) -> Iterator[Rewrite]:
    """Add a comment at the end of a line, or on a separate line before it."""
    lines = text.splitlines(keepends=True)
    for i in sorted(_starts(text)):
        at = lines[i][: len(lines[i]) - len(lines[i].lstrip())]
        yield lambda i=i, at=at: "".join([*lines[:i], f"{at}# what follows\n", *lines[i:]])
    for i in sorted(_ends(text)):
        yield lambda i=i: "".join([*lines[:i], lines[i].rstrip("\n") + "  # (b, h, q, k)\n", *lines[i + 1 :]])


def leave_lines_blank(text: str) -> Iterator[Rewrite]:
    """Add blank lines between statements."""
    lines = text.splitlines(keepends=True)
    for i in sorted(_starts(text)):
        yield lambda i=i: "".join([*lines[:i], "\n", *lines[i:]])


def split_in_brackets(text: str) -> Iterator[Rewrite]:
    """Add a line break after a comma or a bracket, and a comment there."""
    lines = text.splitlines(keepends=True)
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.OP:
            continue
        depth += (token.string in "([{") - (token.string in ")]}")
        if depth and token.string in "([{,":
            row, column = token.end
            line, at = lines[row - 1], " " * (len(lines[row - 1]) - len(lines[row - 1].lstrip()))
            for ending in ("\n", "  # one\n"):
                new = line[:column] + ending + at + "    " + line[column:].lstrip(" ")
                yield lambda row=row, new=new: "".join([*lines[: row - 1], new, *lines[row:]])


def split_a_statement(text: str) -> Iterator[Rewrite]:
    """Continue a statement on the next line, with parentheses or a backslash."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Assign, ast.Return)) and node.value is not None and node.lineno == node.end_lineno:
            line, v = lines[node.lineno - 1], node.value
            if not line.isascii() or ";" in line:
                continue
            head, body, tail = line[: v.col_offset], line[v.col_offset : v.end_col_offset], line[v.end_col_offset :]
            if head.endswith("("):
                continue
            at = " " * node.col_offset
            for new in (
                f"{head}(\n{at}    {body}\n{at}){tail}",
                f"{head}\\\n{at}    {body}{tail}",
                f"{head}({body}){tail}",
            ):
                yield lambda n=node.lineno, new=new: "".join([*lines[: n - 1], new, *lines[n:]])


def put_on_one_line(text: str) -> Iterator[Rewrite]:
    """Join two statements with a semicolon."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for first, second in pairwise(body) if isinstance(body, list) else ():
            plain = all(
                isinstance(s, (ast.Assign, ast.Return, ast.Expr)) and s.lineno == s.end_lineno for s in (first, second)
            )
            if (
                plain
                and second.lineno == first.lineno + 1
                and "#" not in lines[first.lineno - 1]
                and '"""' not in lines[first.lineno - 1]
            ):
                new = lines[first.lineno - 1].rstrip("\n") + "; " + lines[second.lineno - 1].lstrip()
                yield lambda n=first.lineno, new=new: "".join([*lines[: n - 1], new, *lines[n + 1 :]])


def indent_by_tabs(text: str) -> Iterator[Rewrite]:
    """Tabs, or two blanks."""
    if "\t" not in text and "'''" not in text and '"""' not in text and "\\\n" not in text:
        for unit in ("\t", "  "):
            yield lambda unit=unit: "".join(_indent(line, unit) for line in text.splitlines(keepends=True))


def _indent(line: str, unit: str) -> str:
    bare = line.lstrip(" ")
    count, rest = divmod(len(line) - len(bare), 4)
    return unit * count + " " * rest + bare


def end_lines_otherwise(text: str) -> Iterator[Rewrite]:
    """CR LF."""
    if "\r" not in text:
        yield lambda: text.replace("\n", "\r\n")


def _starts(text: str) -> set[int]:
    """Lines that begin a statement, from 0."""
    return {n.lineno - 1 for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)}


def _ends(text: str) -> set[int]:
    """Lines that end a simple statement, from 0."""
    simple = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt) and not hasattr(n, "body"))
    return {(n.end_lineno or n.lineno) - 1 for n in simple}


ALL = (
    comment_a_line, comment_a_line, leave_lines_blank, split_in_brackets, split_in_brackets, split_a_statement,
    split_a_statement, put_on_one_line, indent_by_tabs,
)  # fmt: skip
LAST = (end_lines_otherwise,)
