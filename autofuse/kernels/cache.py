"""Small JSON files in the user's cache folder: read whole, changed in one step, safe where several processes write.

A file says in itself what it belongs to (`belongs_to`, pairs of texts); one that belongs to something else, or that
cannot be read, counts as empty, and a line in the log says so once. Nothing here ever stops a computation: where a
folder cannot be written to, what would be kept there is forgotten when the process ends.
Knows files and JSON; must not know what is kept in them, nor torch.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER = "AUTOFUSE_CACHE_DIR"  # an environment variable
FORMAT_VERSION = 1
_LOG = logging.getLogger("autofuse")
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none
_told: set[str] = set()

Entries = dict[str, Any]


def folder() -> Path | None:
    """AUTOFUSE_CACHE_DIR if that is set, else `autofuse` below XDG_CACHE_HOME or ~/.cache; None for lack of a home.

    Source: the XDG base directory specification, which wants relative paths ignored.
    """
    if own := os.environ.get(FOLDER):
        return Path(own).expanduser().absolute()
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if common.is_absolute():
        return common / "autofuse"
    try:
        return Path.home() / ".cache" / "autofuse"
    except RuntimeError:
        return None


def files() -> list[Path]:
    """The cache's files that are there, by name."""
    here = folder()
    return sorted(here.glob("*.json")) if here is not None and here.is_dir() else []


def clear() -> list[Path]:
    """Delete the cache's files, and what an interrupted write left; returns the files that are gone.

    Raises OSError where one cannot be deleted.
    """
    gone = files()
    for path in gone:
        path.unlink(missing_ok=True)
    here = folder()
    for left in (*here.glob("*.lock"), *here.glob(".*.tmp")) if gone and here else ():
        with suppress(OSError):
            left.unlink()
    return gone


@dataclass(frozen=True)
class Cache:
    """The entries that hold for one thing: `belongs_to` says which, `name` begins the file's name."""

    name: str
    belongs_to: tuple[tuple[str, str], ...]

    @property
    def path(self) -> Path | None:
        """Where they are kept; None where there is no folder for them."""
        text = json.dumps(dict(self.belongs_to), sort_keys=True)
        here = folder()
        return here and here / f"{self.name}-{sha256(text.encode()).hexdigest()[:16]}.json"

    def read(self) -> Entries:
        """What is kept, by key; empty where nothing is, or nothing that can be used."""
        return {} if self.path is None else self._entries(self.path)

    def add(self, entries: Mapping[str, Any]) -> bool:
        """Keep these too, beside what other processes have written meanwhile; whether that could be done.

        Values must be plain data without infinities. An entry of the same key is replaced.
        """
        path = self.path
        if path is None:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock")):
                content = {
                    "version": FORMAT_VERSION,
                    "belongs_to": dict(self.belongs_to),
                    "entries": {**self._entries(path), **entries},
                }
                _replace(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            _tell(f"Decisions cannot be kept in {path.parent} ({error.strerror or error}); they hold until this ends.")
            return False
        return True

    def _entries(self, path: Path) -> Entries:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version, belongs_to, entries = content["version"], content["belongs_to"], content["entries"]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _tell(f"{path} cannot be read ({type(error).__name__}) and is ignored; `autofuse cache clear` removes it.")
            return {}
        if version != FORMAT_VERSION or belongs_to != dict(self.belongs_to) or not isinstance(entries, dict):
            _tell(f"{path} was written for something else and is ignored; `autofuse cache clear` removes it.")
            return {}
        return entries


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes that do the same; where files cannot be locked, the last one to write wins."""
    with path.open("a", encoding="utf-8") as handle:
        if _fcntl is not None:
            with suppress(OSError):  # a network folder without locks
                _fcntl.flock(handle, _fcntl.LOCK_EX)
        yield  # closing unlocks


def _replace(path: Path, text: str) -> None:
    """Put `text` in the place of the file in one step: a reader sees the old text or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _tell(sentence: str) -> None:
    """Log a sentence once."""
    if sentence not in _told:
        _told.add(sentence)
        _LOG.warning(sentence)
