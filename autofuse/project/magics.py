"""IPython's own syntax in a notebook's cell -> plain Python of as many lines, and back.

A line magic, a shell command or a request for help becomes a call that reads every name, for that is what it may do.
Knows lines, brackets and quotes; knows nothing of JSON or of graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Cell magics whose cell is Python that runs in the notebook. All others make the cell somebody else's language.
_PYTHON_CELLS = frozenset("time timeit capture prun".split())
_ASSIGNED = re.compile(r"(?P<indent>\s*)(?P<target>[\w.\[\]'\", *()]+?\s*=\s*)[%!].*", re.DOTALL)
_HELP = re.compile(r"\s*%{0,2}[\w.*]+(\[.*\])?\?{1,2}\s*")
# What IPython takes for a magic even without its sign, where the line is no Python.
_AUTOMAGIC = re.compile(r"\s*(pip3?|conda|mamba|uv|cd|ls|ll|cat|cp|mv|rm|rmdir|mkdir|man|less|more)\s+[^\s=.,(\[]")
_NEWLINE = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_INSIDE = re.compile(
    r"(?P<triple>'''|\"\"\")|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(?P<comment>#.*)|(?P<open>[(\[{])|(?P<close>[)\]}])"
)


class MagicsLost(Exception):
    """A text from which lines of IPython cannot be put back where they were."""


@dataclass(frozen=True)
class Plain:
    """A cell as plain Python: `head` is the cell magic that stands before it, `magics` what the calls stand for."""

    text: str
    head: str = ""
    magics: tuple[str, ...] = ()

    def restored(self, text: str) -> str:
        """`text`, an edited form of `self.text`, with every line of IPython as it was. Raises MagicsLost."""
        for number, original in enumerate(self.magics):
            before, call, after = text.partition(_call(number, original))
            if not call or _call(number, original) in after:
                raise MagicsLost("the edit would move or drop a line that is IPython's own")
            text = before + original + after
        return self.head + text


def plain(cell: str) -> Plain | None:
    """A code cell as Python; None where it is written in another language. Raises SyntaxError where it is neither."""
    head, text = _split(cell)
    name = re.match(r"%%(\S*)", head.strip())
    if name and name[1] not in _PYTHON_CELLS:
        return None
    if _parses(text):
        return Plain(text, head)
    magics: list[str] = []
    lines = []
    for line in _logical_lines(text):
        start = _start_of_magic(line)
        if start is None:
            lines.append(line)
            continue
        original = line[start:].rstrip("\r\n")
        lines.append(line[:start] + _call(len(magics), original) + line[start + len(original) :])
        magics.append(original)
    result = Plain("".join(lines), head, tuple(magics))
    try:
        ast.parse(result.text)
    except SyntaxError as error:
        at = (error.lineno or 1) + len(re.findall(r"\r\n|\r|\n", head))
        raise SyntaxError(error.msg, (error.filename, at, error.offset, error.text)) from error
    return result


def _split(cell: str) -> tuple[str, str]:
    """The cell magic with the blank lines before it, and the rest of the cell."""
    lines = _NEWLINE.split(cell)
    first = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    if first == len(lines) or not lines[first].startswith("%%"):
        return "", cell
    return "".join(lines[: first + 1]), "".join(lines[first + 1 :])


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _call(number: int, original: str) -> str:
    """Python of as many lines as `original`, that no user has written."""
    newlines = "".join(re.findall(r"\r\n|\r|\n", original))
    return f'exec("autofuse: line {number} of IPython"{newlines})'


def _start_of_magic(line: str) -> int | None:
    """Where IPython's own syntax begins in a logical line; None if it is Python."""
    bare = line.lstrip(" \t")
    if bare.startswith(("%", "!", "?", ",", ";", "/")) or _HELP.fullmatch(line) or _AUTOMAGIC.match(line):
        return len(line) - len(bare)
    assigned = _ASSIGNED.fullmatch(line)
    return len(assigned["indent"]) + len(assigned["target"]) if assigned else None


def _logical_lines(text: str) -> Iterator[str]:
    """The lines of a text, those of one bracket, string or backslash together."""
    held, depth, quote = "", 0, ""
    for line in _NEWLINE.split(text):
        if not held and _start_of_magic(line) is not None:
            depth, quote = 0, ""
        elif not (held and depth == 0 and not quote and _start_of_magic(held) is not None):
            depth, quote = _after(line, depth, quote)
        held += line
        if depth == 0 and not quote and not line.rstrip("\r\n").endswith("\\"):
            yield held
            held = ""
    if held:
        yield held


def _after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """How many brackets are open after `line`, and which triple quote."""
    at = 0
    while True:
        if quote:
            end = re.compile(rf"(?:\\.|[^\\])*?{quote}", re.DOTALL).match(line, at)
            if end is None:
                return depth, quote
            at, quote = end.end(), ""
        found = _INSIDE.search(line, at)
        if found is None or found["comment"]:
            return depth, quote
        at, quote = found.end(), found["triple"] or ""
        depth = max(0, depth + bool(found["open"]) - bool(found["close"]))
