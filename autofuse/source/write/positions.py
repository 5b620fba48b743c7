"""Finds the libcst nodes at positions of the ast module.

ast counts columns in UTF-8 bytes; libcst counts characters.
"""

from __future__ import annotations

import re

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from autofuse.source.place.edits import Edit, TextSpan

_NEWLINE = re.compile(r"\r\n|\r|\n")
_Key = tuple[int, int, int, int]


class NodePositions:
    """The nodes of one module, by their positions."""

    def __init__(self, module: cst.Module, text: str) -> None:
        self.lines = _NEWLINE.split(text)
        # `MetadataWrapper.resolve` would visit the whole tree once more, for dependencies that this provider lacks.
        positions = PositionProvider()._gen(MetadataWrapper(module, unsafe_skip_copy=True))
        self.ranges: dict[cst.CSTNode, CodeRange] = {
            node: code_range for node, code_range in positions.items() if isinstance(code_range, CodeRange)
        }
        self._expressions: dict[_Key, cst.BaseExpression] = {}
        self._statements: dict[tuple[int, int], cst.CSTNode] = {}
        self._simple: dict[int, set[int]] = {}  # line -> all lines of the simple statements on it
        for node, code_range in self.ranges.items():
            if isinstance(node, cst.BaseExpression):
                key = (code_range.start.line, code_range.start.column, code_range.end.line, code_range.end.column)
                self._expressions.setdefault(key, node)
            elif isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                self._statements.setdefault((code_range.start.line, code_range.start.column), node)
            elif isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
                inside = range(code_range.start.line, code_range.end.line + 1)
                for line in inside:
                    self._simple.setdefault(line, set()).update(inside)

    def expression(self, span: TextSpan) -> cst.BaseExpression | None:
        """The expression at exactly `span`."""
        return self._expressions.get((*self._start(span), span.end_line, self._column(span.end_line, span.end_column)))

    def statement(self, span: TextSpan) -> cst.CSTNode | None:
        """The simple or compound statement that starts where `span` starts."""
        return self._statements.get(self._start(span))

    def text_around(self, span: TextSpan) -> tuple[str, str]:
        """The text before an expression on its first line, and after it on its last line."""
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

    def changed_lines(self, edit: Edit) -> set[int]:
        """All lines that an edit may change: its statements, and the comments and blank lines around them."""
        changed: set[int] = set()
        for span in edit.spans:
            changed |= self._statement_lines(span)
        for span in edit.pure_tests:
            statement = self.statement(span)
            inside = range(span.line, span.end_line + 1)
            if statement is not None and any(r.line in inside for r in edit.removals):
                changed |= {n for n in inside if self.lines[n - 1].lstrip().startswith(("if", "elif", "else"))}
        # Removing a statement may also remove the comments and blank lines next to it.
        for number in sorted(changed) + sorted(changed, reverse=True):
            for step in (-1, 1):
                neighbor = number + step
                while 0 < neighbor <= len(self.lines) and _is_blank_or_comment(self.lines[neighbor - 1]):
                    changed.add(neighbor)
                    neighbor += step
        return changed

    def _statement_lines(self, span: TextSpan) -> set[int]:
        """The lines of `span`, and of the simple statements on its first line."""
        return set(range(span.line, span.end_line + 1)) | self._simple.get(span.line, set())


def _is_blank_or_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
