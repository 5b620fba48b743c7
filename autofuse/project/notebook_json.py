"""The cells of a notebook file and where their sources stand in its JSON, so that one can be replaced in place.

What is not replaced keeps its bytes: key order, indentation, escapes, outputs. Knows the notebook formats 3 and 4;
knows no Python.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_PIECE = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\\]+")
_decoded_at = json.JSONDecoder().raw_decode


class NotANotebook(Exception):
    """A file that is no notebook; the message says what is wrong with it, and where."""


@dataclass(frozen=True)
class NotebookCell:
    """A code cell in Python. `number` counts all cells from 1; `start` to `end` is its source in the JSON text."""

    number: int
    text: str
    start: int
    end: int


def code_cells(text: str) -> list[NotebookCell]:
    """The code cells of a notebook, in order; none if its language is not Python. Raises NotANotebook."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotANotebook(f"it is no valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # a number of thousands of digits
        raise NotANotebook(f"it is no JSON that Python reads: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells", notebook.get("worksheets")), list):
        raise NotANotebook("it is JSON, but has no list of cells, so it is no notebook")
    if not _is_python(notebook.get("metadata")):
        return []
    return list(_code_cells(text, _SPACE.match(text, 0).end()))  # type: ignore[union-attr]


def with_source(text: str, cell: NotebookCell, source: str) -> str:
    """The JSON `text` with `source` as the source of `cell`, laid out as it was."""
    old = text[cell.start : cell.end]
    new = _list(old, source, text.isascii()) if old.startswith("[") else _string(old, source, text.isascii())
    return text[: cell.start] + new + text[cell.end :]


def _is_python(metadata: object) -> bool:
    named = metadata if isinstance(metadata, dict) else {}
    kernel, language = named.get("kernelspec"), named.get("language_info")
    name = isinstance(language, dict) and language.get("name") or isinstance(kernel, dict) and kernel.get("language")
    return not name or "python" in str(name).lower()


# Where things stand.


def _code_cells(text: str, at: int) -> Iterator[NotebookCell]:
    found = _members(text, at)
    if "cells" in found:
        places = list(_elements(text, found["cells"][0]))
    else:  # format 3
        sheets = (_members(text, start) for start, _ in _elements(text, found["worksheets"][0]))
        places = [p for sheet in sheets if "cells" in sheet for p in _elements(text, sheet["cells"][0])]
    for number, (start, _) in enumerate(places, 1):
        content, _ = _decoded_at(text, start)
        name = "source" if "cells" in found else "input"
        if _is_code(content, name):
            source = content[name]
            first, last = _members(text, start)[name]
            yield NotebookCell(number, source if isinstance(source, str) else "".join(source), first, last)


def _is_code(content: object, name: str) -> bool:
    """Whether a cell holds Python code, in a form that the notebook formats allow."""
    if not isinstance(content, Mapping) or content.get("cell_type") != "code":
        return False
    source, metadata = content.get(name), content.get("metadata")
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    language = editor.get("languageId") if isinstance(editor, dict) else content.get("language")
    lines = isinstance(source, list) and all(isinstance(line, str) for line in source)
    return (lines or isinstance(source, str)) and str(language or "python").lower() == "python"


def _members(text: str, at: int) -> dict[str, tuple[int, int]]:
    """Where each value of the object that begins at `at` stands; as in Python, the last of equal keys counts."""
    found = {}
    at = _after_space(text, at + 1) if text[at] == "{" else -1
    while at >= 0 and text[at] != "}":
        key, at = _decoded_at(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _decoded_at(text, start)
        found[key] = (start, end)
        at = _next(text, end)
    return found


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where each element of the array that begins at `at` stands."""
    at = _after_space(text, at + 1) if text[at] == "[" else -1
    while at >= 0 and text[at] != "]":
        _, end = _decoded_at(text, at)
        yield at, end
        at = _next(text, end)


def _next(text: str, end: int) -> int:
    """Where the next member or element begins, or the closing bracket stands."""
    at = _after_space(text, end)
    return _after_space(text, at + 1) if text[at] == "," else at


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


# New text in old clothes.


def _list(old: str, source: str, ascii_only: bool) -> str:
    places = list(_elements(old, 0))
    raw = [old[start:end] for start, end in places]
    lines: list[str] = [json.loads(r) for r in raw]
    spelled = [w or json.dumps(n, ensure_ascii=ascii_only) for n, w in _matched(raw, lines, _cut(lines, source))]
    opening, closing = old[1 : places[0][0]], old[places[-1][1] : -1]
    if len(places) > 1:
        between = old[places[0][1] : places[1][0]]
    else:
        between = "," + (opening if "\n" in opening else " ")
    return f"[{opening}{between.join(spelled)}{closing}]"


def _cut(old: list[str], source: str) -> list[str]:
    """`source` in lines; a form feed ends one where it did before, as in files that nbformat wrote."""
    by_python = "".join(old).splitlines(keepends=True) == old
    return source.splitlines(keepends=True) if by_python else re.findall(r"[^\n]*\n|[^\n]+", source)


def _string(old: str, source: str, ascii_only: bool) -> str:
    raw = [""]
    for piece in _PIECE.findall(old[1:-1]):
        raw[-1] += piece
        if piece in ("\\n", "\\u000a", "\\u000A"):
            raw.append("")
    raw = [r for r in raw if r]
    new = re.findall(r"[^\n]*\n|[^\n]+", source)
    matched = _matched(raw, [json.loads(f'"{r}"') for r in raw], new)
    return f'"{"".join(w or json.dumps(n, ensure_ascii=ascii_only)[1:-1] for n, w in matched)}"'


def _matched(raw: list[str], old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Each new line with the JSON that spelled it before; "" for one that is new."""
    matcher: difflib.SequenceMatcher[Any] = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        yield from zip(new[start:end], raw[first:last] if kind == "equal" else [""] * (end - start), strict=True)
