"""The comments of a file, found as Python finds them: text in a string is none.

Knows tokens; knows nothing of what a comment says.
"""

from __future__ import annotations

import io
import tokenize


def comments_of(source: bytes) -> list[tuple[int, str]]:
    """(line, comment) for each comment, in order. The file must be one that Python can read."""
    newlines = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # Python's own tokenizer takes \r for no line end
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(newlines).readline))
    except (
        tokenize.TokenError,
        SyntaxError,
    ):  # stricter than the parser in a few places, such as tabs after a form feed
        lines = enumerate(newlines.decode(errors="replace").split("\n"), 1)
        return [(number, line[line.index("#") :]) for number, line in lines if "#" in line]
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
