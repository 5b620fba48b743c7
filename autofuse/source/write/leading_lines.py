"""Comments and blank lines around statements that go.

A comment on the line of a statement that goes, or inside it, goes with it. What stands above the first statement that
goes speaks of them all: it stays above the statement that is written anew, unless that one has a comment of its own.
Comments to tools that hold for more than one line stay. Knows libcst's empty lines; decides nothing about statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

Lines = list[cst.EmptyLine]


def is_pragma(comment: str) -> bool:
    """Whether a comment speaks to a tool about its own line, and means nothing without it."""
    return comment.lstrip("# ").startswith(
        ("noqa", "type:", "pyright:", "pylint:", "fmt:", "mypy:", "pragma:", "nosec")
    )


def opens_region(line: cst.EmptyLine) -> bool:
    """Whether a line of its own speaks to a tool or an editor about the lines below: `# fmt: off`, `# region`."""
    said = line.comment.value.lstrip("#").strip() if line.comment is not None else ""
    return said.startswith(("fmt:", "yapf:", "isort:", "pylint:", "ruff:", "pyright:", "region", "endregion", "%%"))


def comments_in(node: cst.CSTNode) -> Lines:
    """Each comment inside a node as a line of its own, but for pragmas."""
    if isinstance(node, cst.Comment):
        return [] if is_pragma(node.value) else [cst.EmptyLine(comment=node)]
    return [line for child in node.children for line in comments_in(child)]


def comment_line(trailing: cst.TrailingWhitespace) -> Lines:
    """The comment at the end of a line as a line of its own, unless it is a pragma."""
    if trailing.comment is None or is_pragma(trailing.comment.value):
        return []
    return [cst.EmptyLine(comment=trailing.comment)]


def has_comment(lines: Iterable[cst.EmptyLine]) -> bool:
    return any(line.comment is not None for line in lines)


def merged(first: Lines, second: Lines) -> Lines:
    """Both, with no more blank lines between them than there were in the longer run of the two."""
    while first and second and first[-1].comment is None and second[0].comment is None:
        first = first[:-1]
    return [*first, *second]


def handed_on(left: Sequence[Lines], own: Lines, anew: bool) -> tuple[Lines, Lines]:
    """What stands above a statement behind others that went, and the comments that go.

    `left` has the lines above each of those, `own` are its lines, `anew` says whether it is written anew. Blank lines
    stay above the comments that stay.
    """
    heading = anew and not has_comment(own)
    first = next((lines for lines in left if has_comment(lines)), None) if heading else None
    kept: Lines = []
    gone: Lines = []
    for lines in left:
        stays = [line for line in lines if line.comment is None or lines is first or opens_region(line)]
        gone += [line for line in lines if not any(line is s for s in stays)]
        kept = merged(kept, stays)
    if first is not None:
        return _without_blanks_behind(kept), gone
    return single_blanks(merged(kept, own), _longest_blank_run(*left, own)), gone


def _without_blanks_behind(lines: Lines) -> Lines:
    """The lines up to the last comment, so that it stands right above its statement."""
    while lines and lines[-1].comment is None:
        lines = lines[:-1]
    return single_blanks(lines, 1)


def _longest_blank_run(*runs: Lines) -> int:
    longest = run = 0
    for line in (part for lines in runs for part in (*lines, None)):
        run = run + 1 if line is not None and line.comment is None else 0
        longest = max(longest, run)
    return max(1, longest)


def single_blanks(lines: Lines, most: int) -> Lines:
    """The lines with at most so many blank ones in a row."""
    out: Lines = []
    run = 0
    for line in lines:
        run = run + 1 if line.comment is None else 0
        if run <= most:
            out.append(line)
    return out


def without_leading_blanks(lines: Lines) -> Lines:
    """Lines that now begin a block, which formatters let begin with no blank line."""
    while lines and lines[0].comment is None:
        lines = lines[1:]
    return lines
