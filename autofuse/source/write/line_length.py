"""Finds the line length of a file: from the configuration of its project, or else from its lines.

Reads the configuration files of formatters and linters, each only once in a run.
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
_COMMON_LIMITS = (USUAL, 100, 119, 120)  # in ascending order
_EXCEPTIONS = 100  # one of so many lines may exceed the limit, such as a URL or a long string
_LONG_STRING = 30  # characters
_LARGEST = 2**20  # bytes of a configuration file
_NARROWEST, _WIDEST = 40, 400  # a number outside this range means that there is no limit


def line_length(text: str, file: Path | None) -> int:
    """The maximum number of characters in a line of `file` with the content `text`."""
    configured = None if file is None else _configured_length(file.absolute().parent)
    return configured or kept_length(text)


def kept_length(text: str) -> int:
    """The limit that nearly all lines of a text keep, from 88 to 120."""
    lengths = [len(line.expandtabs(4)) for line in _code_lines(text)]
    allowed = len(lengths) // _EXCEPTIONS
    return next((w for w in _COMMON_LIMITS if sum(n > w for n in lengths) <= allowed), _COMMON_LIMITS[-1])


def _code_lines(text: str) -> list[str]:
    """The lines without comments and long strings, because formatters do not wrap these."""
    lines, prose = text.splitlines(), set[int]()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or token.type == tokenize.STRING and len(token.string) > _LONG_STRING:
                prose |= set(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):  # the tokenizer rejects a few things that the parser accepts
        return lines
    return [line for number, line in enumerate(lines, 1) if number not in prose]


def _configured_length(folder: Path) -> int | None:
    """The length in the nearest configuration that has one, from `folder` upwards."""
    for parent in (folder, *folder.parents):
        if (length := _length_in_folder(parent)) is not None or (parent / ".git").exists():
            return length
    return None


@lru_cache(maxsize=4096)
def _length_in_folder(folder: Path) -> int | None:
    for name, parse in _FILES.items():
        if (length := next(iter(_lengths_in_file(folder / name, parse)), None)) is not None:
            return length
    return None


def _lengths_in_file(file: Path, parse: Callable[[str], Iterator[object]]) -> Iterator[int]:
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return
        for value in parse(file.read_text(encoding="utf-8")):
            number = int(value) if isinstance(value, (int, str)) and str(value).isdecimal() else 0
            if _NARROWEST <= number <= _WIDEST:
                yield number
    except (OSError, ValueError, RecursionError, configparser.Error):  # malformed: not for autofuse to report
        return


def _parse_pyproject(text: str) -> Iterator[object]:
    tool = tomllib.loads(text).get("tool") if "line" in text else None
    for name in ("ruff", "black", "flake8"):
        table = tool.get(name) if isinstance(tool, dict) else None
        if isinstance(table, dict):
            yield from _values_of_table(table)


def _parse_ruff(text: str) -> Iterator[object]:
    yield from _values_of_table(tomllib.loads(text))


def _values_of_table(table: Mapping[str, object]) -> Iterator[object]:
    for key in ("line-length", "line_length", "max-line-length", "max_line_length"):
        if key in table:
            yield table[key]


def _parse_ini(text: str) -> Iterator[object]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    for section in ("flake8", "pycodestyle", "pep8"):
        if parser.has_section(section):
            yield from _values_of_table(parser[section])


_FILES: dict[str, Callable[[str], Iterator[object]]] = {
    ".ruff.toml": _parse_ruff,
    "ruff.toml": _parse_ruff,
    "pyproject.toml": _parse_pyproject,
    "setup.cfg": _parse_ini,
    ".flake8": _parse_ini,
    "tox.ini": _parse_ini,
}
