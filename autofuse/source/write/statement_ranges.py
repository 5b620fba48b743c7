"""Splits the text of a file into pieces: runs of lines with whole statements of the module.

An edit changes only its own piece. libcst parses that piece alone, and the rest of the file keeps its bytes.
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
    """The text of a file, with its encoding and byte order mark."""

    content: str
    encoding: str
    bom: bytes = b""

    @classmethod
    def of(cls, source: bytes) -> Text:
        """Decodes the bytes of a file.

        Raises:
            SyntaxError: the declared encoding is unknown.
            UnicodeError: the bytes are not valid in it.
        """
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
    """The lines as Python counts them, with their line ends. A form feed does not end a line."""
    return _LINE.findall(text)


@dataclass(frozen=True)
class FileLines:
    """A range of lines of a file, from `first` to before `end`, counted from 0."""

    first: int
    end: int


def split_into_pieces(tree: ast.Module, count: int) -> list[FileLines]:
    """Splits a module of `count` lines after each of its statements.

    Statements that share a line are in one piece. The last piece has the lines after the last statement too.
    """
    ranges: list[FileLines] = []
    for statement in tree.body:
        first, end = ranges[-1].end if ranges else 0, statement.end_lineno or statement.lineno
        if ranges and first_line(statement) <= first:  # after a semicolon
            first = ranges.pop().first
        ranges.append(FileLines(first, end))
    if ranges:
        ranges[-1] = FileLines(ranges[-1].first, count)
    return ranges


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def piece_of(ranges: list[FileLines], spans: Iterable[TextSpan]) -> FileLines | None:
    """The piece that contains all of `spans`, or None."""
    starts = [p.first for p in ranges]
    indexes = {bisect_right(starts, line - 1) - 1 for s in spans for line in (s.line, s.end_line)}
    return ranges[indexes.pop()] if len(indexes) == 1 and min(indexes) >= 0 else None
