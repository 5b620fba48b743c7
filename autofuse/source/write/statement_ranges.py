"""A file's text in pieces: runs of its lines that hold whole statements of the module.

An edit is made in the piece that it lies in, so that libcst reads no more of a file than it must, and everything else
keeps its bytes because nobody touches it. Knows encodings, lines and where statements end.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.source.place.edits import TextSpan

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Text:
    """The text of a file, and how its bytes spell it."""

    content: str
    encoding: str
    bom: bytes = b""

    @classmethod
    def of(cls, source: bytes) -> Text:
        """Raises SyntaxError and UnicodeError where Python could not read it either."""
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        bom = codecs.BOM_UTF8 if source.startswith(codecs.BOM_UTF8) else b""
        encoding = "utf-8" if bom else encoding
        return cls(source.removeprefix(bom).decode(encoding), encoding, bom)

    def with_content(self, content: str) -> bytes:
        return self.bom + content.encode(self.encoding)

    @property
    def lines(self) -> list[str]:
        return lines_of(self.content)


def lines_of(text: str) -> list[str]:
    """The lines as Python counts them, with their ends; a form feed ends none."""
    return _LINE.findall(text)


@dataclass(frozen=True)
class FileLines:
    """Lines of a file, counted from 0: from `first` up to `end`, which is not included."""

    first: int
    end: int


def pieces(tree: ast.Module, count: int) -> list[FileLines]:
    """The lines of a module of `count` lines, cut after each of its statements; the last piece has what follows."""
    found: list[FileLines] = []
    for statement in tree.body:
        first, end = found[-1].end if found else 0, statement.end_lineno or statement.lineno
        if found and first_line(statement) <= first:  # behind a semicolon
            first = found.pop().first
        found.append(FileLines(first, end))
    if found:
        found[-1] = FileLines(found[-1].first, count)
    return found


def first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def piece_of(found: list[FileLines], spans: Iterable[TextSpan]) -> FileLines | None:
    """The one piece that all of `spans` lie in."""
    starts = [p.first for p in found]
    at = {bisect_right(starts, line - 1) - 1 for s in spans for line in (s.line, s.end_line)}
    return found[at.pop()] if len(at) == 1 and min(at) >= 0 else None
