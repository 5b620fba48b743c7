"""A statement of several lines that fits on one: formatters join it, and so do we where it was written anew.

Knows text; whether the result means the same is asked of Python's parser.
"""

from __future__ import annotations

import ast
import textwrap


def on_one_line(code: str, room: int) -> str | None:
    """`code` on one line of at most `room` characters, without parentheses that only held its lines together.

    None where it has no room, holds a comment or a text of several lines, or ends a list with a comma.
    """
    lines = textwrap.dedent(code).strip().splitlines()
    if len(lines) < 2 or "#" in code or '"""' in code or "'''" in code:
        return None
    text = " ".join(line.strip() for line in lines)
    for bracket in "([{":
        text = text.replace(f"{bracket} ", bracket)
    for bracket in ")]}":
        text = text.replace(f" {bracket}", bracket)
    text = text.replace(" .", ".")
    if ",)" in text or ",]" in text or ",}" in text:
        return None
    text = _without_outer_parentheses(text)
    return text if len(text) <= room and _same(text, "\n".join(lines)) else None


def _without_outer_parentheses(text: str) -> str:
    for start in (text.find("= ("), 6 if text.startswith("return (") else -1):
        if start >= 0 and text.endswith(")"):
            opening = text.index("(", start)
            shorter = text[:opening] + text[opening + 1 : -1]
            if _same(shorter, text):
                return shorter
    return text


def _same(text: str, other: str) -> bool:
    """Whether two texts are one statement; a `return` stands in a function."""
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False
