"""Places the comment at the end of a changed statement.

The comment keeps its column. If the line is then too long, the comment moves above it.
"""

from __future__ import annotations

import libcst as cst

from autofuse.source.write.leading_lines import is_pragma

_GAP = 2  # spaces before a comment, as formatters write them


def place_trailing_comment(
    new: cst.SimpleStatementLine, old: cst.SimpleStatementLine, tree: cst.Module, room: int
) -> cst.SimpleStatementLine:
    """Returns `new`, which replaces `old`, with its comment in the right place.

    `room` is the number of characters that a line may have after its indentation.
    """
    trailing = new.trailing_whitespace
    if trailing.comment is None:
        return new
    before, after = _code(old, tree), _code(new, tree)
    if before == after:
        return new
    gap = len(trailing.whitespace.value)
    column = len(_last_line(before)) + gap
    spaces = max(_GAP, column - len(_last_line(after))) if gap > _GAP and "\n" not in after else gap
    spaces = min(spaces, _GAP) if column < len(_last_line(after)) + _GAP or "\n" in after else spaces
    length = len(trailing.comment.value)
    too_long = len(_last_line(after)) + spaces + length > room >= column + length
    if too_long and not is_pragma(trailing.comment.value):
        line = cst.EmptyLine(comment=trailing.comment)
        without_comment = trailing.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
        return new.with_changes(leading_lines=[*new.leading_lines, line], trailing_whitespace=without_comment)
    return new.with_changes(trailing_whitespace=trailing.with_changes(whitespace=cst.SimpleWhitespace(" " * spaces)))


def _code(line: cst.SimpleStatementLine, tree: cst.Module) -> str:
    plain = cst.TrailingWhitespace(whitespace=cst.SimpleWhitespace(""))
    return tree.code_for_node(line.with_changes(leading_lines=[], trailing_whitespace=plain)).strip()


def _last_line(code: str) -> str:
    return code.rpartition("\n")[2]
