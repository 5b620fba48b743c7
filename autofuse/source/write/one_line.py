"""Joins the lines of a changed statement if it fits on one line, as formatters do.

Python's parser checks that the result means the same.
"""

from __future__ import annotations

import ast
import textwrap


def join_on_one_line(code: str, room: int) -> str | None:
    """Returns `code` on one line of at most `room` characters, without parentheses that only held its lines together.

    Returns None if it does not fit, or if it has a comment, a string of several lines or a trailing comma.
    """
    lines = textwrap.dedent(code).strip().splitlines()
    # A comment would swallow the rest of the line, and joining would change a string of several lines.
    if len(lines) < 2 or "#" in code or '"""' in code or "'''" in code:
        return None
    text = " ".join(line.strip() for line in lines)
    for bracket in "([{":
        text = text.replace(f"{bracket} ", bracket)
    for bracket in ")]}":
        text = text.replace(f" {bracket}", bracket)
    text = text.replace(" .", ".")
    # Formatters keep one element per line if there is a trailing comma.
    if ",)" in text or ",]" in text or ",}" in text:
        return None
    text = _without_outer_parentheses(text)
    return text if len(text) <= room and _is_same_code(text, "\n".join(lines)) else None


def _without_outer_parentheses(text: str) -> str:
    for start in (text.find("= ("), 6 if text.startswith("return (") else -1):
        if start >= 0 and text.endswith(")"):
            opening = text.index("(", start)
            shorter = text[:opening] + text[opening + 1 : -1]
            if _is_same_code(shorter, text):
                return shorter
    return text


def _is_same_code(text: str, other: str) -> bool:
    """Whether two texts parse to the same statement."""
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False
