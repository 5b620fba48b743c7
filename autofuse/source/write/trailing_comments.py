"""The comment at the end of a statement that is written anew: it keeps its column, or stands above a line too long.

Knows libcst's lines. Decides nothing about which comments stay.
"""

from __future__ import annotations

import libcst as cst

from autofuse.source.write.leading_lines import is_pragma

_GAP = 2  # spaces before a comment, as formatters have it


def with_trailing_comment(
    new: cst.SimpleStatementLine, old: cst.SimpleStatementLine, tree: cst.Module, room: int
) -> cst.SimpleStatementLine:
    """`new`, written in place of `old`, with its comment where it belongs; a line has `room` behind its indent."""
    trailing = new.trailing_whitespace
    if trailing.comment is None:
        return new
    before, after = _code(old, tree), _code(new, tree)
    if before == after:
        return new
    gap = len(trailing.whitespace.value)
    column = len(_last_line(before)) + gap
    own = max(_GAP, column - len(_last_line(after))) if gap > _GAP and "\n" not in after else gap
    own = min(own, _GAP) if column < len(_last_line(after)) + _GAP or "\n" in after else own
    comment = len(trailing.comment.value)
    too_long = len(_last_line(after)) + own + comment > room >= column + comment
    if too_long and not is_pragma(trailing.comment.value):
        line = cst.EmptyLine(comment=trailing.comment)
        plain = trailing.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
        return new.with_changes(leading_lines=[*new.leading_lines, line], trailing_whitespace=plain)
    return new.with_changes(trailing_whitespace=trailing.with_changes(whitespace=cst.SimpleWhitespace(" " * own)))


def _code(line: cst.SimpleStatementLine, tree: cst.Module) -> str:
    plain = cst.TrailingWhitespace(whitespace=cst.SimpleWhitespace(""))
    return tree.code_for_node(line.with_changes(leading_lines=[], trailing_whitespace=plain)).strip()


def _last_line(code: str) -> str:
    return code.rpartition("\n")[2]
