"""Decides which comments and blank lines around removed statements stay.

- A comment inside a removed statement, or at the end of its line, is removed.
- A comment above the first of several removed statements describes them all. It moves above the statement that
  replaces them, unless that statement has a comment of its own, or the comment names removed code.
- A comment that directs a tool over several lines, such as `# fmt: off`, stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from autofuse.source.write.stale_comments import without_stale

Lines = list[cst.EmptyLine]


def is_pragma(comment: str) -> bool:
    """Whether a comment directs a tool on its own line only, such as `# noqa`."""
    return comment.lstrip("# ").startswith(
        ("noqa", "type:", "pyright:", "pylint:", "fmt:", "mypy:", "pragma:", "nosec")
    )


def opens_region(line: cst.EmptyLine) -> bool:
    """Whether a comment line directs a tool or an editor on the lines below: `# fmt: off`, `# region`."""
    text = line.comment.value.lstrip("#").strip() if line.comment is not None else ""
    return text.startswith(("fmt:", "yapf:", "isort:", "pylint:", "ruff:", "pyright:", "region", "endregion", "%%"))


def comments_in(node: cst.CSTNode) -> Lines:
    """Each comment inside a node as a separate line, without pragmas."""
    if isinstance(node, cst.Comment):
        return [] if is_pragma(node.value) else [cst.EmptyLine(comment=node)]
    return [line for child in node.children for line in comments_in(child)]


def comment_line(trailing: cst.TrailingWhitespace) -> Lines:
    """The comment at the end of a line as a separate line, unless it is a pragma."""
    if trailing.comment is None or is_pragma(trailing.comment.value):
        return []
    return [cst.EmptyLine(comment=trailing.comment)]


def has_comment(lines: Iterable[cst.EmptyLine]) -> bool:
    return any(line.comment is not None for line in lines)


def join_lines(first: Lines, second: Lines) -> Lines:
    """Joins two runs of lines. Blank lines between them are not added up: the longer run counts."""
    while first and second and first[-1].comment is None and second[0].comment is None:
        first = first[:-1]
    return [*first, *second]


def combine_leading_lines(
    above_removed: Sequence[Lines], own: Lines, is_changed: bool, stale: list[tuple[str, ...]]
) -> tuple[Lines, Lines]:
    """Combines the lines above removed statements with those above the next remaining statement.

    Args:
        above_removed: the lines above each removed statement.
        own: the lines above the remaining statement.
        is_changed: whether the edit changes the remaining statement.
        stale: the names that only the removed code has.

    Returns:
        The lines above the remaining statement, and the comments that are removed. Blank lines stay above comments that
        stay.
    """
    # A comment above the first removed statement becomes the heading of the changed one.
    takes_heading = is_changed and not has_comment(own)
    first = next(iter(above_removed), None) if takes_heading else None
    if first is not None and (without_stale(first, stale)[1] or not has_comment(first)):
        first = None
    kept: Lines = []
    removed: Lines = []
    for lines in above_removed:
        staying = [line for line in lines if line.comment is None or lines is first or opens_region(line)]
        removed += [line for line in lines if not any(line is s for s in staying)]
        kept = join_lines(kept, staying)
    if first is not None:
        # No blank line between the heading and its statement.
        return _up_to_last_comment(kept), removed
    return limit_blank_lines(join_lines(kept, own), _longest_blank_run(*above_removed, own)), removed


def _up_to_last_comment(lines: Lines) -> Lines:
    """The lines up to the last comment, which is then directly above its statement."""
    while lines and lines[-1].comment is None:
        lines = lines[:-1]
    return limit_blank_lines(lines, 1)


def _longest_blank_run(*runs: Lines) -> int:
    longest = run = 0
    for line in (part for lines in runs for part in (*lines, None)):
        run = run + 1 if line is not None and line.comment is None else 0
        longest = max(longest, run)
    return max(1, longest)


def limit_blank_lines(lines: Lines, limit: int) -> Lines:
    """The lines with at most `limit` blank ones in a row."""
    result: Lines = []
    run = 0
    for line in lines:
        run = run + 1 if line.comment is None else 0
        if run <= limit:
            result.append(line)
    return result


def strip_leading_blank_lines(lines: Lines) -> Lines:
    """The lines at the start of a block, where formatters allow no blank line."""
    while lines and lines[0].comment is None:
        lines = lines[1:]
    return lines
