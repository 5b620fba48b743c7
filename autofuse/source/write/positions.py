"""Finds the libcst nodes that stand where ast says.

ast counts columns in UTF-8 bytes, libcst in characters. Knows positions; edits nothing.
"""

from __future__ import annotations

import re

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from autofuse.source.place.edits import Edit, TextSpan

_NEWLINE = re.compile(r"\r\n|\r|\n")
_Key = tuple[int, int, int, int]


class Located:
    """The nodes of one module by where they stand."""

    def __init__(self, module: cst.Module, text: str) -> None:
        self.lines = _NEWLINE.split(text)
        # `MetadataWrapper.resolve` would visit the whole tree once more for providers that there are not.
        found = PositionProvider()._gen(MetadataWrapper(module, unsafe_skip_copy=True))
        self.ranges: dict[cst.CSTNode, CodeRange] = {n: at for n, at in found.items() if isinstance(at, CodeRange)}
        self._expressions: dict[_Key, cst.BaseExpression] = {}
        self._statements: dict[tuple[int, int], cst.CSTNode] = {}
        self._simple: dict[int, set[int]] = {}  # the lines of the simple statements on each line
        for node, at in self.ranges.items():
            if isinstance(node, cst.BaseExpression):
                key = (at.start.line, at.start.column, at.end.line, at.end.column)
                self._expressions.setdefault(key, node)
            elif isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                self._statements.setdefault((at.start.line, at.start.column), node)
            elif isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
                inside = range(at.start.line, at.end.line + 1)
                for line in inside:
                    self._simple.setdefault(line, set()).update(inside)

    def expression(self, span: TextSpan) -> cst.BaseExpression | None:
        """The expression that stands exactly at `span`."""
        return self._expressions.get((*self._start(span), span.end_line, self._column(span.end_line, span.end_column)))

    def statement(self, span: TextSpan) -> cst.CSTNode | None:
        """The simple or compound statement that begins where `span` does."""
        return self._statements.get(self._start(span))

    def text_around(self, span: TextSpan) -> tuple[str, str]:
        """What stands before an expression on its first line, and after it on its last."""
        line, column = self._start(span)
        last = self.lines[span.end_line - 1]
        return self.lines[line - 1][:column], last[self._column(span.end_line, span.end_column) :]

    def first_line(self, node: cst.CSTNode) -> int:
        return self.ranges[node].start.line

    def last_line(self, node: cst.CSTNode) -> int:
        return self.ranges[node].end.line

    def _start(self, span: TextSpan) -> tuple[int, int]:
        return span.line, self._column(span.line, span.column)

    def _column(self, line: int, in_bytes: int) -> int:
        text = self.lines[line - 1]
        return in_bytes if text.isascii() else len(text.encode()[:in_bytes].decode(errors="ignore"))

    def touched_lines(self, edit: Edit) -> set[int]:
        """Every line that an edit may change: its statements, and the comments and blank lines beside them."""
        touched: set[int] = set()
        for span in edit.spans:
            touched |= self._statement_lines(span)
        for span in edit.pure_tests:
            node = self.statement(span)
            inside = range(span.line, span.end_line + 1)
            if node is not None and any(r.line in inside for r in edit.removals):
                touched |= {n for n in inside if self.lines[n - 1].lstrip().startswith(("if", "elif", "else"))}
        for number in sorted(touched) + sorted(touched, reverse=True):
            for step in (-1, 1):
                beside = number + step
                while 0 < beside <= len(self.lines) and _is_blank_or_comment(self.lines[beside - 1]):
                    touched.add(beside)
                    beside += step
        return touched

    def _statement_lines(self, span: TextSpan) -> set[int]:
        """The lines of the simple statements on the line where `span` begins; its own where it heads a block."""
        return set(range(span.line, span.end_line + 1)) | self._simple.get(span.line, set())


def _is_blank_or_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
