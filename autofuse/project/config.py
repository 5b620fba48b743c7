"""Reads and validates the table [tool.autofuse] of the nearest pyproject.toml.

This module defines the keys of the table and the values that each may have. It does not check that the codes of rules
exist (see loading/selection.py), and it searches no folders for Python files.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from autofuse.results.regular_files import read
from autofuse.results.target_names import DEFAULT, TARGETS
from autofuse.results.visible_text import visible

FILE = "pyproject.toml"
_LARGEST = 16 * 2**20  # bytes


class ConfigError(Exception):
    """The configuration is not valid. The message is a sentence that names the file and the key."""


@dataclass(frozen=True)
class FileSettings:
    """The content of [tool.autofuse].

    Attributes:
        root: The folder of the pyproject.toml. Patterns are relative to it.
        select: Prefixes of the codes of rules to use; empty for all rules.
        ignore: Prefixes of the codes of rules to leave out.
        exclude: Patterns of files and folders to leave out.
        per_file_ignores: Patterns of files, each with the prefixes of the codes to leave out there.
        rules: Folders with rules of the project.
        target: The library that rewritten code calls.
    """

    root: Path
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    rules: tuple[Path, ...] = ()
    target: str = DEFAULT

    def excludes(self, path: str) -> bool:
        """Whether one of the `exclude` patterns matches a file or folder."""
        return bool(self.exclude) and any(_matches(path, p, self.root) for p in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """Return the prefixes of codes that `per-file-ignores` switches off in one file."""
        return tuple(c for pattern, codes in self.per_file_ignores if _matches(path, pattern, self.root) for c in codes)


@dataclass
class Configuration:
    """The settings of all folders. Each folder is looked up once."""

    _by_folder: dict[Path, FileSettings] = field(default_factory=dict)

    def settings_for(self, folder: Path) -> FileSettings:
        """Return the settings for the files in `folder`.

        They come from the nearest pyproject.toml with a table [tool.autofuse], in `folder` or above it.

        Raises:
            ConfigError: The file is not valid.
        """
        folders: list[Path] = []
        for here in (folder, *folder.parents):
            if here in self._by_folder:
                break
            folders.append(here)
            table = read_table(here / FILE)
            if table is not None or here == here.parent:
                self._by_folder[here] = FileSettings(here) if table is None else _settings(table, here / FILE)
                break
        for below in folders:
            self._by_folder[below] = self._by_folder[here]
        return self._by_folder[folder]


def read_table(file: Path) -> Mapping[str, object] | None:
    """Return the table [tool.autofuse] of a file, or None if there is no such table or file. Raises ConfigError."""
    whole = read_toml(file)
    tool = whole.get("tool") if whole is not None else None
    table = tool.get("autofuse") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{display_path(file)}: `tool.autofuse` must be a table, written [tool.autofuse].")
    return table


def read_toml(file: Path, mention: bytes = b"autofuse") -> Mapping[str, object] | None:
    """Return the content of a TOML file.

    Args:
        file: The path.
        mention: A text that the file must contain. Other files are not parsed.

    Returns:
        The content, or None if there is no such file or if it does not contain `mention`.

    Raises:
        ConfigError: The file cannot be read or is not valid TOML.
    """
    try:
        content = read(str(file), _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{display_path(file)}: cannot be read: {error.strerror or error}.") from error
    if mention not in content:  # the file has no settings for autofuse, so errors in it do not matter
        return None
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # ValueError includes a number with too many digits
        raise ConfigError(f"{display_path(file)}: is not valid TOML: {error}.") from error


def display_path(file: Path) -> str:
    """Return a path as messages show it."""
    return visible(str(file))


def _settings(table: Mapping[str, object], file: Path) -> FileSettings:
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean `{close[0]}`?" if close else f"It may have {', '.join(f'`{k}`' for k in _KEYS)}."
            raise ConfigError(f"{display_path(file)}: [tool.autofuse] has no key `{key}`. {hint}")
    read = {key: _KEYS[key](value, _KeyLocation(file, key)) for key, value in table.items()}
    return FileSettings(root=file.parent, **{k.replace("-", "_"): v for k, v in read.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class _KeyLocation:
    """A key in a file, for error messages."""

    file: Path
    key: str

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{display_path(self.file)}: `{self.key}` in [tool.autofuse] {what}.")


def _strings(value: object, location: _KeyLocation) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise location.error(f"must be a list of strings, and is {value!r}")
    return tuple(value)


def _codes_by_pattern(value: object, location: _KeyLocation) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise location.error(f'must map patterns to lists of codes, like {{"tests/*" = ["AF1"]}}, and is {value!r}')
    return tuple((pattern, _strings(codes, location)) for pattern, codes in value.items())


def _folders(value: object, location: _KeyLocation) -> tuple[Path, ...]:
    folders = tuple(location.file.parent / name for name in _strings(value, location))
    for folder in folders:
        if not folder.is_dir():
            raise location.error(f"names {str(folder)!r}, which is not a folder")
    return folders


def _target(value: object, location: _KeyLocation) -> str:
    if value not in TARGETS:
        raise location.error(f"must be one of {', '.join(map(repr, TARGETS))}, and is {value!r}")
    return str(value)


_KEYS: dict[str, Callable[[object, _KeyLocation], object]] = {
    "select": _strings,
    "ignore": _strings,
    "exclude": _strings,
    "per-file-ignores": _codes_by_pattern,
    "rules": _folders,
    "target": _target,
}
KEYS = frozenset(_KEYS)


def _matches(path: str, pattern: str, root: Path) -> bool:
    """Whether `pattern` matches this path or a folder above it.

    A pattern without a slash matches the name of a file or folder anywhere: "generated", "*_pb2.py". A pattern with a
    slash is relative to `root`: "src/old", "src/*/old".
    """
    pattern = pattern.rstrip("/")
    relative = PurePath(os.path.relpath(path, root))
    if "/" not in pattern:
        return any(fnmatch.fnmatchcase(part, pattern) for part in relative.parts)
    return any(fnmatch.fnmatchcase(p.as_posix(), pattern.removeprefix("./")) for p in _with_parents(relative))


def _with_parents(path: PurePath) -> Iterator[PurePath]:
    yield path
    yield from path.parents
