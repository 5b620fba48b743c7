"""Small JSON files in the user's cache folder, which several processes may read and write at the same time.

A file is read as a whole and replaced in one step. It contains what it belongs to (`belongs_to`, pairs of texts). A
file that belongs to something else, or that cannot be read, counts as empty, and the log says so once. Nothing here
stops a computation: if a folder is not writable, decisions last until the process ends. Folder and files are private to
the user, and files of other users are not read.
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
from autofuse.results.temporary_files import remove_leftovers, still_has_path

FORMAT_VERSION = 1
_LOG = logging.getLogger("autofuse")
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has no fcntl
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_PATIENCE, _PAUSE = 20.0, 0.01  # seconds; a suspended process may hold a lock forever
_logged: set[str] = set()
LIBRARY = ".so"  # the ending of a compiled library
KEPT = ".kept"  # the ending of files that save time at a second start and contain no decisions
_MOST_FILES = 1000  # for each ending; 50 to 100 KB each

Entries = dict[str, Any]


def files() -> list[Path]:
    """The files of decisions, by name."""
    root = folder()
    return sorted(root.glob("*.json")) if root is not None and root.is_dir() else []


def clear() -> list[Path]:
    """Deletes all files of the cache, and leftovers of interrupted writes.

    Returns:
        The deleted files of decisions.

    Raises:
        OSError: if a file of decisions cannot be deleted.
    """
    removed = files()
    for path in removed:
        path.unlink(missing_ok=True)
    root = folder()
    for ending in (".lock", LIBRARY, KEPT) if root is not None else ():
        for leftover in root.glob(f"*{ending}"):  # type: ignore[union-attr]
            with suppress(OSError):
                leftover.unlink()
    if root is not None:
        remove_leftovers(str(root))
    return removed


def keep_file(content: bytes, suffix: str) -> str | None:
    """Stores bytes under the name of their digest. Returns that name, or None if that is not possible."""
    root, name = folder(), sha256(content).hexdigest() + suffix
    if root is None:
        return None
    try:
        make(root)
        if find_kept_file(name) is None:
            _make_room(root, suffix)
            put_private(str(root / name), content)
    except OSError as error:
        _LOG.debug("%s cannot be kept: %s", name, error)
        return None
    return name


def find_kept_file(name: str) -> Path | None:
    """The path of the bytes with this digest; None if the file is missing, damaged, or not the user's."""
    root = folder()
    if root is None or os.path.basename(name) != name:
        return None
    path = root / name
    try:
        require_own(root)
        is_intact = sha256(read_own(str(path))).hexdigest() == path.stem
    except OSError:
        return None
    return path if is_intact else None


def _make_room(root: Path, suffix: str) -> None:
    """Deletes the oldest files if there are too many. A process that has loaded one keeps its copy in memory."""
    found = sorted(root.glob(f"*{suffix}"), key=lambda p: p.stat().st_mtime)
    for old in found[: max(0, len(found) - _MOST_FILES)]:
        with suppress(OSError):
            old.unlink()


@dataclass(frozen=True)
class Cache:
    """The file with the entries for one thing.

    Attributes:
        name: the beginning of the file's name.
        belongs_to: what the entries are for.
        ending: the ending of the file's name; `autofuse cache` lists ".json".
    """

    name: str
    belongs_to: tuple[tuple[str, str], ...]
    ending: str = ".json"

    @property
    def path(self) -> Path | None:
        """The path of the file; None if there is no cache folder."""
        text = json.dumps(dict(self.belongs_to), sort_keys=True)
        root = folder()
        return root and root / f"{self.name}-{sha256(text.encode()).hexdigest()[:16]}{self.ending}"

    def read(self) -> Entries:
        """All entries, by key; empty if there are none or the file is not usable."""
        return {} if self.path is None else self._entries(self.path)

    def add(self, entries: Mapping[str, Any]) -> bool:
        """Adds entries, and keeps those that other processes wrote in the meantime.

        Args:
            entries: plain data without infinities. An entry with the same key is replaced.

        Returns:
            Whether the entries could be written.
        """
        path = self.path
        if path is None:
            return False
        try:
            make(path.parent)
            with _lock(path.with_suffix(".lock")):
                content = {
                    "version": FORMAT_VERSION,
                    "belongs_to": dict(self.belongs_to),
                    "entries": {**self._entries(path), **entries},
                }
                remove_leftovers(str(path.parent))
                put_private(str(path), (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        except OSError as error:
            _log_once(
                f"autofuse cannot write to {path.parent} ({error.strerror or error}). Decisions last until this "
                "process ends."
            )
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
            _log_once(f"autofuse does not read {path}: {error.strerror or error}: {error.filename or path}.")
            return {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log_once(f"{path} is damaged ({type(error).__name__}) and is ignored. `autofuse cache clear` removes it.")
            return {}
        if version != FORMAT_VERSION or belongs_to != dict(self.belongs_to) or not isinstance(entries, dict):
            _log_once(f"{path} belongs to something else and is ignored. `autofuse cache clear` removes it.")
            return {}
        return entries


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a lock that all processes use. If files cannot be locked, the last process that writes wins.

    Raises:
        OSError: if another process holds the lock longer than any write takes.
        PermissionError: if the lock is not a regular file of this user.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        handle = os.open(path, _OPEN_LOCK, 0o600)
        try:
            if kind_of(os.fstat(handle).st_mode) or not is_own(os.fstat(handle)):
                raise PermissionError(errno.EPERM, "the lock is not a regular file of this user", str(path))
            _wait_for(handle, deadline)
            if still_has_path(handle, str(path)):  # `autofuse cache clear` may have deleted it in the meantime
                yield  # closing unlocks
                return
        finally:
            os.close(handle)


def _wait_for(handle: int, deadline: float) -> None:
    while _fcntl is not None:
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        except OSError:  # network folders may have no locks
            return


def _log_once(sentence: str) -> None:
    """Logs a sentence once."""
    if sentence not in _logged:
        _logged.add(sentence)
        _LOG.warning(sentence)
