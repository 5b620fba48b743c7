"""Finds the sources of cells in the JSON text of a notebook, and replaces one without changing the rest.

Everything else keeps its bytes: the order of keys, indentation, escapes and outputs. This module supports the notebook
formats 3 and 4, and does not read Python code.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_PIECE = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\\]+")
_decoded_at = json.JSONDecoder().raw_decode


class NotANotebook(Exception):
    """The file is not a notebook. The message says what is wrong, and where."""


@dataclass(frozen=True)
class NotebookCell:
    """A code cell in Python.

    Attributes:
        number: The position among all cells, counted from 1.
        text: The source.
        start: The index of the source in the JSON text.
        end: The index after the source.
    """

    number: int
    text: str
    start: int
    end: int


def code_cells(text: str) -> list[NotebookCell]:
    """Return the code cells of a notebook in order; none if its language is not Python. Raises NotANotebook."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotANotebook(f"it is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # a number with thousands of digits
        raise NotANotebook(f"Python cannot read its JSON: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells", notebook.get("worksheets")), list):
        raise NotANotebook("it is JSON without a list of cells, so it is not a notebook")
    if not _is_python(notebook.get("metadata")):
        return []
    return list(_code_cells(text, _SPACE.match(text, 0).end()))  # type: ignore[union-attr]


def replace_source(text: str, cell: NotebookCell, source: str) -> str:
    """Return the JSON `text` with `source` as the source of `cell`. The layout of the JSON stays the same."""
    old = text[cell.start : cell.end]
    new = (
        _write_list(old, source, text.isascii()) if old.startswith("[") else _write_string(old, source, text.isascii())
    )
    return text[: cell.start] + new + text[cell.end :]


def _is_python(metadata: object) -> bool:
    named = metadata if isinstance(metadata, dict) else {}
    kernel, language = named.get("kernelspec"), named.get("language_info")
    name = isinstance(language, dict) and language.get("name") or isinstance(kernel, dict) and kernel.get("language")
    return not name or "python" in str(name).lower()


# Find positions in the JSON text.


def _code_cells(text: str, at: int) -> Iterator[NotebookCell]:
    notebook = _members(text, at)
    if "cells" in notebook:
        positions = list(_elements(text, notebook["cells"][0]))
    else:  # format 3
        sheets = (_members(text, start) for start, _ in _elements(text, notebook["worksheets"][0]))
        positions = [p for sheet in sheets if "cells" in sheet for p in _elements(text, sheet["cells"][0])]
    for number, (start, _) in enumerate(positions, 1):
        content, _ = _decoded_at(text, start)
        name = "source" if "cells" in notebook else "input"
        if _is_code(content, name):
            source = content[name]
            first, last = _members(text, start)[name]
            yield NotebookCell(number, source if isinstance(source, str) else "".join(source), first, last)


def _is_code(content: object, name: str) -> bool:
    """Whether a cell contains Python code in a form that the notebook formats allow."""
    if not isinstance(content, Mapping) or content.get("cell_type") != "code":
        return False
    source, metadata = content.get(name), content.get("metadata")
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    language = editor.get("languageId") if isinstance(editor, dict) else content.get("language")
    lines = isinstance(source, list) and all(isinstance(line, str) for line in source)
    return (lines or isinstance(source, str)) and str(language or "python").lower() == "python"


def _members(text: str, at: int) -> dict[str, tuple[int, int]]:
    """Return the start and end of each value of the object at index `at`. The last of equal keys counts."""
    members = {}
    at = _after_space(text, at + 1) if text[at] == "{" else -1
    while at >= 0 and text[at] != "}":
        key, at = _decoded_at(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _decoded_at(text, start)
        members[key] = (start, end)
        at = _after_comma(text, end)
    return members


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each element of the array at index `at`."""
    at = _after_space(text, at + 1) if text[at] == "[" else -1
    while at >= 0 and text[at] != "]":
        _, end = _decoded_at(text, at)
        yield at, end
        at = _after_comma(text, end)


def _after_comma(text: str, end: int) -> int:
    """Return the index of the next member or element, or of the closing bracket."""
    at = _after_space(text, end)
    return _after_space(text, at + 1) if text[at] == "," else at


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


# Write a new source in the layout of the old one.


def _write_list(old: str, source: str, ascii_only: bool) -> str:
    """Write a source as a list of lines."""
    positions = list(_elements(old, 0))
    raw = [old[start:end] for start, end in positions]
    lines: list[str] = [json.loads(r) for r in raw]
    elements = [
        w or json.dumps(n, ensure_ascii=ascii_only) for n, w in _reuse_spelling(raw, lines, _split_lines(lines, source))
    ]
    opening, closing = old[1 : positions[0][0]], old[positions[-1][1] : -1]
    if len(positions) > 1:
        between = old[positions[0][1] : positions[1][0]]
    else:
        between = "," + (opening if "\n" in opening else " ")
    return f"[{opening}{between.join(elements)}{closing}]"


def _split_lines(old: list[str], source: str) -> list[str]:
    """Split a source into lines. nbformat uses `str.splitlines`, other programs split at newlines alone."""
    by_python = "".join(old).splitlines(keepends=True) == old
    return source.splitlines(keepends=True) if by_python else re.findall(r"[^\n]*\n|[^\n]+", source)


def _write_string(old: str, source: str, ascii_only: bool) -> str:
    """Write a source as one string."""
    raw = [""]
    for piece in _STRING_PIECE.findall(old[1:-1]):
        raw[-1] += piece
        if piece in ("\\n", "\\u000a", "\\u000A"):
            raw.append("")
    raw = [r for r in raw if r]
    new = re.findall(r"[^\n]*\n|[^\n]+", source)
    matched = _reuse_spelling(raw, [json.loads(f'"{r}"') for r in raw], new)
    return f'"{"".join(w or json.dumps(n, ensure_ascii=ascii_only)[1:-1] for n, w in matched)}"'


def _reuse_spelling(raw: list[str], old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each new line with its old JSON text, or with "" if the old source does not contain the line.

    Args:
        raw: The JSON text of each old line.
        old: The old lines.
        new: The new lines.
    """
    matcher: difflib.SequenceMatcher[Any] = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        yield from zip(new[start:end], raw[first:last] if kind == "equal" else [""] * (end - start), strict=True)
