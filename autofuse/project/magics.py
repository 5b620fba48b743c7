"""Translates the IPython syntax in the cell of a notebook to plain Python with as many lines, and back.

A line magic, a shell command or a request for help becomes a call of `exec`. To the analysis this call may read every
name, as the original may. This module works on lines, brackets and quotes; it uses neither JSON nor graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Cell magics that run the cell as Python code of the notebook. Every other cell magic means another language.
_PYTHON_CELLS = frozenset("time timeit capture prun".split())
_ASSIGNED = re.compile(r"(?P<indent>\s*)(?P<target>[\w.\[\]'\", *()]+?\s*=\s*)[%!].*", re.DOTALL)
_HELP = re.compile(r"\s*%{0,2}[\w.*]+(\[.*\])?\?{1,2}\s*")
# Commands that IPython accepts without a leading sign, if the line is not Python.
_AUTOMAGIC = re.compile(r"\s*(pip3?|conda|mamba|uv|cd|ls|ll|cat|cp|mv|rm|rmdir|mkdir|man|less|more)\s+[^\s=.,(\[]")
_NEWLINE = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_INSIDE = re.compile(
    r"(?P<triple>'''|\"\"\")|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(?P<comment>#.*)|(?P<open>[(\[{])|(?P<close>[)\]}])"
)


class MagicsLost(Exception):
    """The IPython lines of a text cannot be restored at their old places."""


@dataclass(frozen=True)
class PlainCell:
    """A cell as plain Python.

    Attributes:
        text: The Python code.
        magic: The cell magic before it, with its line end; "" if there is none.
        magics: The IPython texts that `text` replaces by calls, in order.
    """

    text: str
    magic: str = ""
    magics: tuple[str, ...] = ()

    def restore_magics(self, text: str) -> str:
        """Return `text`, an edited form of `self.text`, with the IPython lines in place. Raises MagicsLost."""
        for number, original in enumerate(self.magics):
            before, call, after = text.partition(_placeholder(number, original))
            if not call or _placeholder(number, original) in after:
                raise MagicsLost("the edit would move or remove a line with IPython syntax")
            text = before + original + after
        return self.magic + text


def to_plain_python(cell: str) -> PlainCell | None:
    """Translate a code cell to Python.

    Returns:
        The translated cell, or None if a cell magic says that the cell is in another language.

    Raises:
        SyntaxError: The cell is neither Python nor IPython syntax.
    """
    magic, text = _split_cell_magic(cell)
    name = re.match(r"%%(\S*)", magic.strip())
    if name and name[1] not in _PYTHON_CELLS:
        return None
    if _is_python(text):
        return PlainCell(text, magic)
    magics: list[str] = []
    lines = []
    for line in _logical_lines(text):
        start = _start_of_magic(line)
        if start is None:
            lines.append(line)
            continue
        original = line[start:].rstrip("\r\n")
        lines.append(line[:start] + _placeholder(len(magics), original) + line[start + len(original) :])
        magics.append(original)
    result = PlainCell("".join(lines), magic, tuple(magics))
    try:
        ast.parse(result.text)
    except SyntaxError as error:
        line_number = (error.lineno or 1) + len(re.findall(r"\r\n|\r|\n", magic))
        raise SyntaxError(error.msg, (error.filename, line_number, error.offset, error.text)) from error
    return result


def _split_cell_magic(cell: str) -> tuple[str, str]:
    """Return the cell magic with the blank lines before it, and the rest of the cell."""
    lines = _NEWLINE.split(cell)
    first = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    if first == len(lines) or not lines[first].startswith("%%"):
        return "", cell
    return "".join(lines[: first + 1]), "".join(lines[first + 1 :])


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _placeholder(number: int, original: str) -> str:
    """Return a call with as many lines as `original`. No user writes such a call."""
    newlines = "".join(re.findall(r"\r\n|\r|\n", original))
    return f'exec("autofuse: line {number} of IPython"{newlines})'


def _start_of_magic(line: str) -> int | None:
    """Return the index where IPython syntax begins in a logical line; None if the line is Python."""
    bare = line.lstrip(" \t")
    if bare.startswith(("%", "!", "?", ",", ";", "/")) or _HELP.fullmatch(line) or _AUTOMAGIC.match(line):
        return len(line) - len(bare)
    assigned = _ASSIGNED.fullmatch(line)
    return len(assigned["indent"]) + len(assigned["target"]) if assigned else None


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the logical lines of a text. Lines that a bracket, a string or a backslash joins are one logical line."""
    pending, depth, quote = "", 0, ""
    for line in _NEWLINE.split(text):
        if not pending and _start_of_magic(line) is not None:
            depth, quote = 0, ""  # brackets and quotes in a magic have no meaning in Python
        elif not (pending and depth == 0 and not quote and _start_of_magic(pending) is not None):
            depth, quote = _scan_line(line, depth, quote)
        pending += line
        if depth == 0 and not quote and not line.rstrip("\r\n").endswith("\\"):
            yield pending
            pending = ""
    if pending:
        yield pending


def _scan_line(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return the number of open brackets and the open triple quote after `line`, given those before it."""
    at = 0
    while True:
        if quote:
            end = re.compile(rf"(?:\\.|[^\\])*?{quote}", re.DOTALL).match(line, at)
            if end is None:
                return depth, quote
            at, quote = end.end(), ""
        token = _INSIDE.search(line, at)
        if token is None or token["comment"]:
            return depth, quote
        at, quote = token.end(), token["triple"] or ""
        depth = max(0, depth + bool(token["open"]) - bool(token["close"]))
