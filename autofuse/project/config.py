"""[tool.autofuse] of the nearest pyproject.toml, read and validated.

Knows which keys there are and what each may hold. Does not know which rules exist (selection.py), nor walks folders.
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
_LARGEST = 16 * 2**20


class ConfigError(Exception):
    """A configuration that cannot be used; the message is a sentence that names the file and the key."""


@dataclass(frozen=True)
class FileSettings:
    """What [tool.autofuse] says. Patterns are relative to `root`, the folder of that pyproject.toml."""

    root: Path
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    rules: tuple[Path, ...] = ()
    target: str = DEFAULT

    def excludes(self, path: str) -> bool:
        """Whether a file or folder is matched by one of the `exclude` patterns."""
        return bool(self.exclude) and any(_matches(path, p, self.root) for p in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The code prefixes that `per-file-ignores` switches off in one file."""
        return tuple(c for pattern, codes in self.per_file_ignores if _matches(path, pattern, self.root) for c in codes)


@dataclass
class Configuration:
    """The settings of each folder, looked up once in a run."""

    _known: dict[Path, FileSettings] = field(default_factory=dict)

    def of(self, folder: Path) -> FileSettings:
        """The settings for files in `folder`: those of the nearest pyproject.toml that has a [tool.autofuse].

        Raises ConfigError where that file cannot be used.
        """
        asked: list[Path] = []
        for here in (folder, *folder.parents):
            if here in self._known:
                break
            asked.append(here)
            table = table_of(here / FILE)
            if table is not None or here == here.parent:
                self._known[here] = FileSettings(here) if table is None else _settings(table, here / FILE)
                break
        for below in asked:
            self._known[below] = self._known[here]
        return self._known[folder]


def table_of(file: Path) -> Mapping[str, object] | None:
    """The [tool.autofuse] of one file; None where there is no such table, or no such file. Raises ConfigError."""
    whole = contents_of(file)
    tool = whole.get("tool") if whole is not None else None
    table = tool.get("autofuse") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{named(file)}: `tool.autofuse` must be a table, written [tool.autofuse].")
    return table


def contents_of(file: Path, mention: bytes = b"autofuse") -> Mapping[str, object] | None:
    """What a TOML file says; None where there is none, and where it never mentions us. Raises ConfigError."""
    try:
        content = read(str(file), _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{named(file)}: cannot be read: {error.strerror or error}.") from error
    if mention not in content:  # somebody else's file; whether it is well formed is no concern of ours
        return None
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # the first is also a number of too many digits
        raise ConfigError(f"{named(file)}: is not valid TOML: {error}.") from error


def named(file: Path) -> str:
    """A path as it is shown to people."""
    return visible(str(file))


def _settings(table: Mapping[str, object], file: Path) -> FileSettings:
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean `{close[0]}`?" if close else f"It may have {', '.join(f'`{k}`' for k in _KEYS)}."
            raise ConfigError(f"{named(file)}: [tool.autofuse] has no key `{key}`. {hint}")
    read = {key: _KEYS[key](value, _Where(file, key)) for key, value in table.items()}
    return FileSettings(root=file.parent, **{k.replace("-", "_"): v for k, v in read.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Where:
    file: Path
    key: str

    def refused(self, what: str) -> ConfigError:
        return ConfigError(f"{named(self.file)}: `{self.key}` in [tool.autofuse] {what}.")


def _strings(value: object, where: _Where) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise where.refused(f"must be a list of strings, and is {value!r}")
    return tuple(value)


def _codes_by_pattern(value: object, where: _Where) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise where.refused(f'must map patterns to lists of codes, like {{"tests/*" = ["AF1"]}}, and is {value!r}')
    return tuple((pattern, _strings(codes, where)) for pattern, codes in value.items())


def _folders(value: object, where: _Where) -> tuple[Path, ...]:
    folders = tuple(where.file.parent / name for name in _strings(value, where))
    for folder in folders:
        if not folder.is_dir():
            raise where.refused(f"names {str(folder)!r}, which is not a folder")
    return folders


def _target(value: object, where: _Where) -> str:
    if value not in TARGETS:
        raise where.refused(f"must be one of {', '.join(map(repr, TARGETS))}, and is {value!r}")
    return str(value)


_KEYS: dict[str, Callable[[object, _Where], object]] = {
    "select": _strings,
    "ignore": _strings,
    "exclude": _strings,
    "per-file-ignores": _codes_by_pattern,
    "rules": _folders,
    "target": _target,
}
KEYS = frozenset(_KEYS)


def _matches(path: str, pattern: str, root: Path) -> bool:
    """Whether `pattern` names this path, a folder above it, or just its last part.

    "generated" and "*_pb2.py" match by name anywhere; "src/old" and "src/*/old" match from `root` on.
    """
    pattern = pattern.rstrip("/")
    relative = PurePath(os.path.relpath(path, root))
    if "/" not in pattern:
        return any(fnmatch.fnmatchcase(part, pattern) for part in relative.parts)
    return any(fnmatch.fnmatchcase(p.as_posix(), pattern.removeprefix("./")) for p in _upwards(relative))


def _upwards(path: PurePath) -> Iterator[PurePath]:
    yield path
    yield from path.parents
