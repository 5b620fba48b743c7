"""`# autofuse: ignore` in a file: which findings its author does not want to hear of.

Only real comments count: text in a string switches nothing off. Knows comments and lines, not what findings are about.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from autofuse.source.write.comments import comments_of

EVERY = ("",)  # the prefix of every code
_COMMENT = re.compile(r"#\s*autofuse:\s*(?P<scope>ignore-file|ignore)(?![\w-])\s*(?:\[(?P<codes>[^\]]*)\])?")


@dataclass(frozen=True)
class Suppressions:
    """Code prefixes that are switched off, in the whole file and line by line."""

    everywhere: tuple[str, ...] = ()
    by_line: tuple[tuple[int, tuple[str, ...]], ...] = ()
    whole_file: tuple[tuple[int, str], ...] = ()  # the line of each comment for the whole file, and a prefix in it

    def stale(
        self, heard: Iterable[tuple[str, int, int]], active: Collection[str], every: Collection[str]
    ) -> Iterator[tuple[int, str]]:
        """(line, code) of what switches nothing off: `heard` are codes and lines of all findings, "" is a bare comment.

        `active` are the codes that were looked for, of `every` there are. What was not looked for is not judged, and a
        code that no rule bears here may be one of rules that are not executed.
        """
        heard = list(heard)
        comments = [(at, None, c) for at, codes in self.by_line for c in codes]
        for at, line, prefix in [*comments, *((at, -1, c) for at, c in self.whole_file)]:
            meant = [c for c in every if c.startswith(prefix)]
            if not meant or not set(meant) <= set(active):
                continue
            covered = (c.startswith(prefix) and (line == -1 or first <= at <= last) for c, first, last in heard)
            if not any(covered):
                yield at, prefix

    def cover(self, code: str, line: int, end_line: int) -> bool:
        """Whether a finding of `code` on the lines from `line` to `end_line` is switched off by one of them."""
        here = (c for at, codes in self.by_line if line <= at <= end_line for c in codes)
        return code.startswith((*self.everywhere, *here))


def suppressions(source: bytes) -> Suppressions:
    """What the comments of a file switch off: `# autofuse: ignore`, `ignore[AF101, AF2]`, `ignore-file[AF101]`.

    The file must be one that Python can read.
    """
    if b"autofuse:" not in source:  # tokenizing costs more than all the rest of reading a file
        return Suppressions()
    found = list(_comments(source))
    return Suppressions(
        tuple(c for _, scope, codes in found if scope == "ignore-file" for c in codes),
        tuple((line, codes) for line, scope, codes in found if scope == "ignore"),
        tuple((line, c) for line, scope, codes in found if scope == "ignore-file" for c in codes),
    )


def _comments(source: bytes) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for line, comment in comments_of(source):
        for match in _COMMENT.finditer(comment):
            yield line, match["scope"], _codes(match["codes"])


def _codes(listed: str | None) -> tuple[str, ...]:
    """Without brackets everything; with empty brackets nothing, for nothing was named."""
    if listed is None:
        return EVERY
    return tuple(c for c in re.split(r"[\s,]+", listed.upper()) if c)


def with_ignores(source: bytes, wanted: Iterable[tuple[str, int, int]]) -> tuple[bytes, int]:
    """A file with a comment for each finding (code, first and last line) that none covers, and how many were written.

    A comment stands at the end of the first line of the finding that can hold one: not inside of a string, nor before
    a backslash. Where there is none, nothing is written for that finding.
    """
    before = suppressions(source)
    lines = source.splitlines(keepends=True)
    ends = _line_ends(source)
    codes: dict[int, list[str]] = {}
    for code, first, last in wanted:
        at = next((n for n in range(first, last + 1) if n in ends), None)
        if at is None or before.cover(code, first, last) or code in codes.get(at, ()):
            continue
        codes.setdefault(at, []).append(code)
    for at, own in codes.items():
        text = lines[at - 1].rstrip(b"\r\n")
        end = lines[at - 1][len(text) :]
        listed = _LISTED.search(text)
        if listed is not None:
            text = text[: listed.end(1)] + b", " + ", ".join(own).encode() + text[listed.end(1) :]
        else:
            text = text.rstrip() + f"  # autofuse: ignore[{', '.join(own)}]".encode()
        lines[at - 1] = text + end
    after = b"".join(lines)
    if codes and ast.dump(ast.parse(source)) != ast.dump(ast.parse(after)):
        return source, 0
    return after, sum(map(len, codes.values()))


_LISTED = re.compile(rb"#\s*autofuse:\s*ignore\[([^\]\s][^\]]*)\]\s*$")


def _line_ends(source: bytes) -> frozenset[int]:
    """The lines at whose end a comment may stand."""
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return frozenset()
    return frozenset(t.start[0] for t in tokens if t.type in (tokenize.NEWLINE, tokenize.NL))
