"""`# autofuse: ignore` in a file: which findings its author does not want to hear of.

Only real comments count: text in a string switches nothing off. Knows comments and lines, not what findings are about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.source.write.comments import comments_of

EVERY = ("",)  # the prefix of every code
_COMMENT = re.compile(r"#\s*autofuse:\s*(?P<scope>ignore-file|ignore)(?![\w-])\s*(?:\[(?P<codes>[^\]]*)\])?")


@dataclass(frozen=True)
class Suppressions:
    """Code prefixes that are switched off, in the whole file and line by line."""

    everywhere: tuple[str, ...] = ()
    by_line: tuple[tuple[int, tuple[str, ...]], ...] = ()

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
