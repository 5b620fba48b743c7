"""Makes edits in a file, on its libcst tree, and proves that nothing else changed.

Statements that go leave their comments behind; a block that is left empty goes, or becomes `pass`. Every line outside
the statements that are touched keeps its bytes. Knows positions and text; decides nothing about what may be rewritten.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import libcst as cst

from autofuse.source.find.proposal import Proposal
from autofuse.source.place.edits import Edit, joined, moved
from autofuse.source.write.comments import comments_of
from autofuse.source.write.leading_lines import is_pragma
from autofuse.source.write.line_length import kept_length, line_length
from autofuse.source.write.positions import Located
from autofuse.source.write.rebuild import EditedModule, Misplaced
from autofuse.source.write.requirements import with_imports
from autofuse.source.write.statement_ranges import FileLines, Text, lines_of, piece_of, pieces


class CannotWrite(Exception):
    """A file that libcst does not give back as it was, or an edit that would change more than it says."""


class LosesComments(CannotWrite):
    """An edit that would remove a comment, which makes it unsafe."""


def applied(source: bytes, proposals: Iterable[Proposal]) -> bytes:
    """`source` with the edit of every proposal made, in one pass; those without an edit are passed over.

    Raises CannotWrite where the file cannot be edited without changing anything else.
    """
    edits = [p.edit for p in proposals if p.edit is not None]
    return source if not edits else with_edits(source, edits)


def with_edits(source: bytes, edits: Sequence[Edit], comments: bool = True, file: Path | None = None) -> bytes:
    """`source` with every edit made. `file` is where it stands, which may say how long its lines are.

    Raises CannotWrite; LosesComments too, if `comments` of what stays must all be kept.
    """
    try:
        text = Text.of(source)
        result = text.with_content(with_text_edits(text.content, edits, comments, line_length(text.content, file)))
        ast.parse(result)
    except (UnicodeError, LookupError) as error:
        raise CannotWrite(f"its encoding cannot be written: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotWrite(f"the edited file would not parse: {getattr(error, 'msg', error)}") from error
    return result


def with_text_edits(text: str, edits: Sequence[Edit], comments: bool = True, width: int | None = None) -> str:
    """The same for a text, whose lines may be `width` long, or as long as it keeps them.

    Only the statements of the module that hold an edit are read by libcst.
    """
    width = width or kept_length(text)
    if "\r" in text and "\n" not in text:  # as on old Macs, which libcst does not give back
        return with_text_edits(text.replace("\r", "\n"), edits, comments, width).replace("\n", "\r")
    lines, tree = lines_of(text), ast.parse(text)
    found = pieces(tree, len(lines))
    by_piece: dict[FileLines, list[Edit]] = {}
    for edit in edits:
        if edit.spans:
            piece = piece_of(found, (*edit.spans, *edit.pure_tests))
            if piece is None:
                raise CannotWrite("the edit would reach over several statements of the file")
            by_piece.setdefault(piece, []).append(moved(edit, -piece.first))
    for piece in sorted(by_piece, key=lambda p: p.first, reverse=True):
        old = "".join(lines[piece.first : piece.end])
        new, gone = _edited(old, joined(by_piece[piece]), width)
        if comments and (lost := _more(comments_lost(old.encode(), new.encode()), gone)):
            raise LosesComments(f"it would lose the comment {lost[0]!r}, so it is unsafe")
        lines[piece.first : piece.end] = lines_of(new)
    return with_imports("".join(lines), (s for e in edits for s in e.imports))


def _more(lost: list[str], gone: list[str]) -> list[str]:
    """The comments that are lost besides those that went with their statements."""
    return list((Counter(lost) - Counter(gone)).elements())


def _edited(text: str, edit: Edit, width: int) -> tuple[str, list[str]]:
    """One piece of a file with its edits made, and the comments that went with statements. Raises CannotWrite."""
    try:
        module = cst.parse_module(text)
        if module.code != text:
            raise CannotWrite("libcst does not give this text back as it is, so it is left alone")
        located = Located(module, text)
        made = EditedModule(module, located, edit, width)
        result = made.module().code
    except (Misplaced, cst.CSTValidationError) as error:
        raise CannotWrite(str(error)) from error
    except cst.ParserSyntaxError as error:
        raise CannotWrite(f"libcst cannot read it: {error.message}") from error
    except RecursionError as error:
        raise CannotWrite("it is nested too deeply for libcst, so it is left alone") from error
    _check(lines_of(text), lines_of(result), located.touched_lines(edit))
    return result, [line.comment.value for line in made.dropped if line.comment is not None]


def _check(before: list[str], after: list[str], touched: set[int]) -> None:
    """Raises CannotWrite unless lines that no edit touches are all there, and follow one another as they did."""
    position = 0
    for first, last in _untouched(len(before), touched):
        at = _found(after, before[first:last], position)
        if at is None or first == 0 != at or last == len(before) and at + last - first != len(after):
            raise CannotWrite(f"the edit would change lines {first + 1} to {last}, which it does not touch")
        position = at + last - first


def _untouched(count: int, touched: set[int]) -> Iterator[tuple[int, int]]:
    """The runs of lines that no edit touches: index of the first, and of what follows the last."""
    numbers = [0, *sorted(n for n in touched if 0 < n <= count), count + 1]
    for before, after in pairwise(numbers):
        if after - before > 1:
            yield before, after - 1


def _found(lines: list[str], run: list[str], start: int) -> int | None:
    """Where `run` stands in `lines`, from `start` on."""
    for at in range(start, len(lines) - len(run) + 1):
        if lines[at] == run[0] and lines[at : at + len(run)] == run:
            return at
    return None


def comments_lost(before: bytes, after: bytes) -> list[str]:
    """Comments that are missing from a text that was `before`, but for those that speak to a tool about their line."""
    missing = Counter(c for _, c in comments_of(before)) - Counter(c for _, c in comments_of(after))
    return [c for c in missing.elements() if not is_pragma(c)]


__all__ = ["CannotWrite", "LosesComments", "applied", "comments_lost", "with_edits", "with_text_edits"]
