"""Finds the comments of a file with Python's tokenizer, so text in a string does not count."""

from __future__ import annotations

import io
import tokenize


def comments_of(source: bytes) -> list[tuple[int, str]]:
    """The line and the text of each comment, in order. Python must be able to parse the file."""
    text = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # the tokenizer does not treat \r as a line end
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        # The tokenizer rejects a few things that the parser accepts, such as tabs after a form feed.
        lines = enumerate(text.decode(errors="replace").split("\n"), 1)
        return [(number, line[line.index("#") :]) for number, line in lines if "#" in line]
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
