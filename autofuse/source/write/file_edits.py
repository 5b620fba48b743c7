"""Applies edits to a file with libcst, and checks that nothing else changes.

A removed statement leaves the comments above it. An empty block is removed, or becomes `pass`. Every line outside the
edited statements keeps its bytes. This module does not decide which edits are made.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import libcst as cst

from autofuse.source.find.proposal import Proposal
from autofuse.source.place.edits import Edit, merge_edits, shift_lines
from autofuse.source.write.added_imports import add_imports
from autofuse.source.write.comments import comments_of
from autofuse.source.write.keyword_spacing import is_spaced
from autofuse.source.write.leading_lines import is_pragma
from autofuse.source.write.line_length import kept_length, line_length
from autofuse.source.write.positions import NodePositions
from autofuse.source.write.rebuild import EditedModule, NodeNotFound
from autofuse.source.write.statement_ranges import FileLines, Text, lines_of, piece_of, split_into_pieces


class CannotWrite(Exception):
    """An edit that cannot be made: libcst does not reproduce the file, or other code would change."""


class LosesComments(CannotWrite):
    """An edit that would remove a comment. It is unsafe."""


def apply_proposals(source: bytes, proposals: Iterable[Proposal]) -> bytes:
    """Returns `source` with the edits of all proposals, made in one pass. Proposals without an edit are ignored.

    Raises:
        CannotWrite: the edits would change other code.
    """
    edits = [p.edit for p in proposals if p.edit is not None]
    return source if not edits else apply_edits(source, edits)


def apply_edits(source: bytes, edits: Sequence[Edit], comments: bool = True, file: Path | None = None) -> bytes:
    """Returns `source` with all edits.

    Args:
        source: the bytes of the file.
        edits: the edits.
        comments: whether to refuse an edit that loses a comment.
        file: the path of the file. Its project may configure the line length.

    Raises:
        CannotWrite: an edit cannot be made.
        LosesComments: an edit would lose a comment.
    """
    try:
        text = Text.of(source)
        result = text.with_content(apply_edits_to_text(text.content, edits, comments, line_length(text.content, file)))
        ast.parse(result)
    except (UnicodeError, LookupError) as error:
        raise CannotWrite(f"its encoding cannot be written: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotWrite(f"the edited file would not parse: {getattr(error, 'msg', error)}") from error
    return result


def apply_edits_to_text(text: str, edits: Sequence[Edit], comments: bool = True, width: int | None = None) -> str:
    """Returns `text` with all edits.

    libcst reads only the statements of the module that contain an edit. Lines may have `width` characters. Without
    `width`, they may be as long as the text keeps them.
    """
    width = width or kept_length(text)
    if "\r" in text and "\n" not in text:  # the line ends of old Macs, which libcst does not reproduce
        return apply_edits_to_text(text.replace("\r", "\n"), edits, comments, width).replace("\n", "\r")
    lines, tree, spaced = lines_of(text), ast.parse(text), is_spaced(text)
    all_pieces = split_into_pieces(tree, len(lines))
    by_piece: dict[FileLines, list[Edit]] = {}
    for edit in edits:
        if edit.spans:
            piece = piece_of(all_pieces, (*edit.spans, *edit.pure_tests))
            if piece is None:
                raise CannotWrite("the edit covers several statements at module level")
            by_piece.setdefault(piece, []).append(shift_lines(edit, -piece.first))
    # From the last piece to the first, so that the line numbers of the others stay valid.
    for piece in sorted(by_piece, key=lambda p: p.first, reverse=True):
        old = "".join(lines[piece.first : piece.end])
        new, dropped = _edit_piece(old, merge_edits(by_piece[piece]), width, spaced)
        if comments and (lost := _lost_otherwise(lost_comments(old.encode(), new.encode()), dropped)):
            raise LosesComments(f"it would lose the comment {lost[0]!r}, so it is unsafe")
        lines[piece.first : piece.end] = lines_of(new)
    return add_imports("".join(lines), (s for e in edits for s in e.imports))


def _lost_otherwise(lost: list[str], dropped: list[str]) -> list[str]:
    """The lost comments, without those of removed statements."""
    return list((Counter(lost) - Counter(dropped)).elements())


def _edit_piece(text: str, edit: Edit, width: int, spaced: bool) -> tuple[str, list[str]]:
    """Returns one piece of a file with its edits, and the comments that are removed with their statements.

    Raises:
        CannotWrite: an edit cannot be made.
    """
    try:
        module = cst.parse_module(text)
        if module.code != text:
            raise CannotWrite("libcst does not reproduce this text, so autofuse leaves it alone")
        positions = NodePositions(module, text)
        rebuilt = EditedModule(module, positions, edit, width, spaced)
        result = rebuilt.module().code
    except (NodeNotFound, cst.CSTValidationError) as error:
        raise CannotWrite(str(error)) from error
    except cst.ParserSyntaxError as error:
        raise CannotWrite(f"libcst cannot read it: {error.message}") from error
    except RecursionError as error:
        raise CannotWrite("it is nested too deeply for libcst, so autofuse leaves it alone") from error
    _check_other_lines(lines_of(text), lines_of(result), positions.changed_lines(edit))
    return result, [line.comment.value for line in rebuilt.dropped if line.comment is not None]


def _check_other_lines(before: list[str], after: list[str], changed: set[int]) -> None:
    """Raises CannotWrite unless all lines outside the edits remain, unchanged and in order."""
    position = 0
    for first, last in _unchanged_runs(len(before), changed):
        index = _index_of_run(after, before[first:last], position)
        # The first run must stay at the start of the file, and the last run at its end.
        if index is None or first == 0 != index or last == len(before) and index + last - first != len(after):
            raise CannotWrite(f"the edit would change lines {first + 1} to {last}, which are not part of it")
        position = index + last - first


def _unchanged_runs(count: int, changed: set[int]) -> Iterator[tuple[int, int]]:
    """Yields the runs of lines that no edit changes: the index of the first line, and the index after the last."""
    numbers = [0, *sorted(n for n in changed if 0 < n <= count), count + 1]
    for before, after in pairwise(numbers):
        if after - before > 1:
            yield before, after - 1


def _index_of_run(lines: list[str], run: list[str], start: int) -> int | None:
    """The index of `run` in `lines`, from `start` on."""
    for index in range(start, len(lines) - len(run) + 1):
        if lines[index] == run[0] and lines[index : index + len(run)] == run:
            return index
    return None


def lost_comments(before: bytes, after: bytes) -> list[str]:
    """The comments of `before` that `after` lacks, without pragmas such as `# noqa`."""
    missing = Counter(c for _, c in comments_of(before)) - Counter(c for _, c in comments_of(after))
    return [c for c in missing.elements() if not is_pragma(c)]


__all__ = ["CannotWrite", "LosesComments", "apply_edits", "apply_edits_to_text", "apply_proposals", "lost_comments"]
