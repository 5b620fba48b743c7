"""How long the lines of a file may be: as its project says, else as the file keeps it itself.

Reads the configuration files of formatters and linters, each once in a run. Knows nothing of edits.
"""

from __future__ import annotations

import configparser
import io
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

USUAL = 88
_KEPT = (USUAL, 100, 119, 120)  # limits that files keep to, the narrowest first
_EXCEPTIONS = 100  # one line in so many may be longer than the limit: an address, a long string
_LONG_STRING = 30  # characters
_LARGEST = 2**20
_NARROWEST, _WIDEST = 40, 400  # a number beyond these says that there is no limit


def line_length(text: str, file: Path | None) -> int:
    """The number of characters that a line of `file`, which holds `text`, may have."""
    configured = None if file is None else _configured(file.absolute().parent)
    return configured or kept_length(text)


def kept_length(text: str) -> int:
    """The limit that nearly all lines of a text keep, 88 at least and 120 at most."""
    lengths = [len(line.expandtabs(4)) for line in _code_lines(text)]
    allowed = len(lengths) // _EXCEPTIONS
    return next((w for w in _KEPT if sum(n > w for n in lengths) <= allowed), _KEPT[-1])


def _code_lines(text: str) -> list[str]:
    """The lines of code alone: what is said in comments and strings is laid out by nobody."""
    lines, prose = text.splitlines(), set[int]()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or token.type == tokenize.STRING and len(token.string) > _LONG_STRING:
                prose |= set(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):  # stricter than the parser in a few places
        return lines
    return [line for number, line in enumerate(lines, 1) if number not in prose]


def _configured(folder: Path) -> int | None:
    """What the nearest configuration says that names a length, from `folder` upwards."""
    for place in (folder, *folder.parents):
        if (found := _configured_in(place)) is not None or (place / ".git").exists():
            return found
    return None


@lru_cache(maxsize=4096)
def _configured_in(folder: Path) -> int | None:
    for name, read in _FILES.items():
        if (found := next(iter(_lengths(folder / name, read)), None)) is not None:
            return found
    return None


def _lengths(file: Path, read: Callable[[str], Iterator[object]]) -> Iterator[int]:
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return
        for found in read(file.read_text(encoding="utf-8")):
            number = int(found) if isinstance(found, (int, str)) and str(found).isdecimal() else 0
            if _NARROWEST <= number <= _WIDEST:
                yield number
    except (OSError, ValueError, RecursionError, configparser.Error):  # malformed, and nobody asked us to judge it
        return


def _of_pyproject(text: str) -> Iterator[object]:
    tool = tomllib.loads(text).get("tool") if "line" in text else None
    for name in ("ruff", "black", "flake8"):
        table = tool.get(name) if isinstance(tool, dict) else None
        if isinstance(table, dict):
            yield from _of_table(table)


def _of_ruff(text: str) -> Iterator[object]:
    yield from _of_table(tomllib.loads(text))


def _of_table(table: Mapping[str, object]) -> Iterator[object]:
    for key in ("line-length", "line_length", "max-line-length", "max_line_length"):
        if key in table:
            yield table[key]


def _of_sections(text: str) -> Iterator[object]:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.read_string(text)
    for section in ("flake8", "pycodestyle", "pep8"):
        if read.has_section(section):
            yield from _of_table(read[section])


_FILES: dict[str, Callable[[str], Iterator[object]]] = {
    ".ruff.toml": _of_ruff,
    "ruff.toml": _of_ruff,
    "pyproject.toml": _of_pyproject,
    "setup.cfg": _of_sections,
    ".flake8": _of_sections,
    "tox.ini": _of_sections,
}
