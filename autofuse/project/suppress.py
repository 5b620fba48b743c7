"""Reads and writes `# autofuse: ignore` comments, which switch findings off.

Only real comments count; a text in a string literal has no effect. This module uses the codes and lines of findings,
but not their meaning.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from autofuse.source.write.comments import comments_of

ALL_CODES = ("",)  # the prefix of every code
_COMMENT = re.compile(r"#\s*autofuse:\s*(?P<scope>ignore-file|ignore)(?![\w-])\s*(?:\[(?P<codes>[^\]]*)\])?")


@dataclass(frozen=True)
class Suppressions:
    """The prefixes of codes that the comments of a file switch off.

    Attributes:
        whole_file_codes: The prefixes that are switched off in the whole file.
        by_line: The lines with a comment for one line, each with its prefixes.
        file_comments: The line of each comment for the whole file, with one of its prefixes.
    """

    whole_file_codes: tuple[str, ...] = ()
    by_line: tuple[tuple[int, tuple[str, ...]], ...] = ()
    file_comments: tuple[tuple[int, str], ...] = ()

    def find_unused(
        self, findings: Iterable[tuple[str, int, int]], active: Collection[str], every: Collection[str]
    ) -> Iterator[tuple[int, str]]:
        """Yield the comments that switch nothing off.

        A prefix is judged only if all rules with that prefix are active. A prefix without any rule is not judged,
        because it may belong to a rule that must not be executed.

        Args:
            findings: The code, first line and last line of every finding.
            active: The codes that were checked.
            every: The codes of all rules.

        Yields:
            The line and the prefix of each unused comment; "" is a comment without a code.
        """
        findings = list(findings)
        comments = [(at, None, c) for at, codes in self.by_line for c in codes]
        for at, line, prefix in [*comments, *((at, -1, c) for at, c in self.file_comments)]:
            matching = [c for c in every if c.startswith(prefix)]
            if not matching or not set(matching) <= set(active):
                continue
            covered = (c.startswith(prefix) and (line == -1 or first <= at <= last) for c, first, last in findings)
            if not any(covered):
                yield at, prefix

    def covers(self, code: str, line: int, end_line: int) -> bool:
        """Whether a comment switches off a finding with `code` on the lines `line` to `end_line`."""
        here = (c for at, codes in self.by_line if line <= at <= end_line for c in codes)
        return code.startswith((*self.whole_file_codes, *here))


def read_suppressions(source: bytes) -> Suppressions:
    """Return what the comments of a file switch off.

    The forms are `# autofuse: ignore`, `# autofuse: ignore[AF101, AF2]` and `# autofuse: ignore-file[AF101]`.

    Args:
        source: The file. Python must be able to tokenize it.
    """
    if b"autofuse:" not in source:  # the tokenizer is slower than everything else that reads a file
        return Suppressions()
    comments = list(_comments(source))
    return Suppressions(
        tuple(c for _, scope, codes in comments if scope == "ignore-file" for c in codes),
        tuple((line, codes) for line, scope, codes in comments if scope == "ignore"),
        tuple((line, c) for line, scope, codes in comments if scope == "ignore-file" for c in codes),
    )


def _comments(source: bytes) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for line, comment in comments_of(source):
        for match in _COMMENT.finditer(comment):
            yield line, match["scope"], _codes(match["codes"])


def _codes(listed: str | None) -> tuple[str, ...]:
    """Return the listed codes: all codes without brackets, and no code with empty brackets."""
    if listed is None:
        return ALL_CODES
    return tuple(c for c in re.split(r"[\s,]+", listed.upper()) if c)


def add_ignore_comments(source: bytes, wanted: Iterable[tuple[str, int, int]]) -> tuple[bytes, int]:
    """Add a comment for each finding that no comment switches off yet.

    The comment goes to the end of the first line of the finding that can have one. A line inside of a string and a
    line that ends in a backslash cannot have a comment. If no line can have one, the finding is left out.

    Args:
        source: The file.
        wanted: The code, first line and last line of each finding.

    Returns:
        The new file, and the number of findings that it switches off in addition.
    """
    before = read_suppressions(source)
    lines = source.splitlines(keepends=True)
    ends = _line_ends(source)
    codes: dict[int, list[str]] = {}
    for code, first, last in wanted:
        at = next((n for n in range(first, last + 1) if n in ends), None)
        if at is None or before.covers(code, first, last) or code in codes.get(at, ()):
            continue
        codes.setdefault(at, []).append(code)
    for at, added in codes.items():
        text = lines[at - 1].rstrip(b"\r\n")
        end = lines[at - 1][len(text) :]
        listed = _LISTED.search(text)
        if listed is not None:
            text = text[: listed.end(1)] + b", " + ", ".join(added).encode() + text[listed.end(1) :]
        else:
            text = text.rstrip() + f"  # autofuse: ignore[{', '.join(added)}]".encode()
        lines[at - 1] = text + end
    after = b"".join(lines)
    if codes and ast.dump(ast.parse(source)) != ast.dump(ast.parse(after)):  # a comment must not change the program
        return source, 0
    return after, sum(map(len, codes.values()))


_LISTED = re.compile(rb"#\s*autofuse:\s*ignore\[([^\]\s][^\]]*)\]\s*$")


def _line_ends(source: bytes) -> frozenset[int]:
    """Return the lines that can end in a comment."""
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return frozenset()
    return frozenset(t.start[0] for t in tokens if t.type in (tokenize.NEWLINE, tokenize.NL))
