"""Small JSON files in the user's cache folder: read whole, changed in one step, safe where several processes write.

A file says in itself what it belongs to (`belongs_to`, pairs of texts); one that belongs to something else, or that
cannot be read, counts as empty, and a line in the log says so once. Nothing here ever stops a computation: where a
folder cannot be written to, what would be kept there is forgotten when the process ends. Folder and files are for the
user alone, and what is not the user's is not read.
Knows files and JSON; must not know what is kept in them, nor torch.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofuse.results.atomic_files import put_private
from autofuse.results.cache_folder import folder, make, require_own
from autofuse.results.regular_files import is_own, kind_of, read_own
from autofuse.results.temporary_files import is_still, remove_leftovers

FORMAT_VERSION = 1
_LOG = logging.getLogger("autofuse")
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_PATIENCE, _PAUSE = 20.0, 0.01  # seconds: a process that is stopped may hold a lock for ever
_told: set[str] = set()
LIBRARY = ".so"  # the ending of a compiled library
KEPT = ".kept"  # the ending of what saves time at a second start, and decides nothing
_MOST_FILES = 1000  # of one ending, 50 to 100 KB each

Entries = dict[str, Any]


def files() -> list[Path]:
    """The files of decisions that are there, by name."""
    here = folder()
    return sorted(here.glob("*.json")) if here is not None and here.is_dir() else []


def clear() -> list[Path]:
    """Delete all that is kept, and what an interrupted write left; returns the files of decisions that are gone.

    Raises OSError where one cannot be deleted.
    """
    gone = files()
    for path in gone:
        path.unlink(missing_ok=True)
    here = folder()
    for ending in (".lock", LIBRARY, KEPT) if here is not None else ():
        for left in here.glob(f"*{ending}"):  # type: ignore[union-attr]
            with suppress(OSError):
                left.unlink()
    if here is not None:
        remove_leftovers(str(here))
    return gone


def keep_file(content: bytes, suffix: str) -> str | None:
    """Keep bytes under the name of their digest, which is returned; None where that cannot be done."""
    here, name = folder(), sha256(content).hexdigest() + suffix
    if here is None:
        return None
    try:
        make(here)
        if kept_file(name) is None:
            _make_room(here, suffix)
            put_private(str(here / name), content)
    except OSError as error:
        _LOG.debug("%s cannot be kept: %s", name, error)
        return None
    return name


def kept_file(name: str) -> Path | None:
    """Where the bytes of that digest lie, if they are there, whole and the user's."""
    here = folder()
    if here is None or os.path.basename(name) != name:
        return None
    path = here / name
    try:
        require_own(here)
        whole = sha256(read_own(str(path))).hexdigest() == path.stem
    except OSError:
        return None
    return path if whole else None


def _make_room(here: Path, suffix: str) -> None:
    """Delete the oldest files where there are too many. A process that has loaded one keeps its copy."""
    found = sorted(here.glob(f"*{suffix}"), key=lambda p: p.stat().st_mtime)
    for old in found[: max(0, len(found) - _MOST_FILES)]:
        with suppress(OSError):
            old.unlink()


@dataclass(frozen=True)
class Cache:
    """The entries that hold for one thing: `belongs_to` says which, `name` begins the file's name."""

    name: str
    belongs_to: tuple[tuple[str, str], ...]
    ending: str = ".json"  # of decisions, which `autofuse cache` lists

    @property
    def path(self) -> Path | None:
        """Where they are kept; None where there is no folder for them."""
        text = json.dumps(dict(self.belongs_to), sort_keys=True)
        here = folder()
        return here and here / f"{self.name}-{sha256(text.encode()).hexdigest()[:16]}{self.ending}"

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
            make(path.parent)
            with _locked(path.with_suffix(".lock")):
                content = {
                    "version": FORMAT_VERSION,
                    "belongs_to": dict(self.belongs_to),
                    "entries": {**self._entries(path), **entries},
                }
                remove_leftovers(str(path.parent))
                put_private(str(path), (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        except OSError as error:
            _tell(f"Decisions cannot be kept in {path.parent} ({error.strerror or error}); they hold until this ends.")
            return False
        return True

    def _entries(self, path: Path) -> Entries:
        try:
            require_own(path.parent)
            content = json.loads(read_own(str(path)))
            version, belongs_to, entries = content["version"], content["belongs_to"], content["entries"]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except PermissionError as error:
            _tell(f"{path} is not read: {error.strerror or error}: {error.filename or path}.")
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
    """Alone among all processes that do the same; where files cannot be locked, the last one to write wins.

    Raises OSError where another one holds the lock for longer than any write takes.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        handle = os.open(path, _OPEN_LOCK, 0o600)
        try:
            if kind_of(os.fstat(handle).st_mode) or not is_own(os.fstat(handle)):
                raise PermissionError(errno.EPERM, "it is no file of ours", str(path))
            _wait_for(handle, until)
            if is_still(handle, str(path)):  # not deleted by `autofuse cache clear` meanwhile
                yield  # closing unlocks
                return
        finally:
            os.close(handle)


def _wait_for(handle: int, until: float) -> None:
    while _fcntl is not None:
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        except OSError:  # a network folder without locks
            return


def _tell(sentence: str) -> None:
    """Log a sentence once."""
    if sentence not in _told:
        _told.add(sentence)
        _LOG.warning(sentence)
