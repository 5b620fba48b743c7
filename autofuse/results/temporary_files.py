"""Temporary files that will replace other files. Each is locked while it is written.

A process that is killed cannot delete its file, but its lock ends. So a later process can tell leftovers from files
that are being written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

_PREFIX, _SUFFIX = ".autofuse-", ".tmp"  # no Python ending, so autofuse never reads them as sources
_NAME = re.compile(r"\.autofuse-[0-9a-f]{16}\.tmp")
_OLD = 3600.0  # seconds; an older file is a leftover. Used only if files cannot be locked
_LOOK = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # not available on Windows


@contextmanager
def temporary_next_to(target: str) -> Iterator[tuple[IO[bytes], str]]:
    """Creates an empty file that only the user can read, in the folder of `target`. Yields it and its path.

    If the block raises an error, the file is deleted. Otherwise the block must move it. Raises OSError if it cannot be
    created.
    """
    while True:
        # Choose the name before the file exists, because an interruption can occur between any two instructions.
        path = os.path.join(os.path.dirname(target), f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}")
        try:
            with open(path, "xb", opener=_open_private) as file:
                if _lock(file.fileno(), wait=True) is None or still_has_path(file.fileno(), path):
                    yield file, path
                    return
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise


def remove_leftovers(folder: str) -> list[str]:
    """Deletes the files that killed processes left in a folder. Files that are being written stay.

    Returns:
        The paths of the deleted files.
    """
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return []
    return [path for path in found if _remove_if_left(path)]


def still_has_path(handle: int, path: str) -> bool:
    """Whether the open file still has this path. It may have been deleted before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _remove_if_left(path: str) -> bool:
    try:
        handle = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        status, locked = os.fstat(handle), _lock(handle, wait=False)
        left = time.time() - status.st_mtime > _OLD if locked is None else locked
        if left and _may_delete(status) and still_has_path(handle, path):
            os.unlink(path)
            return True
    except OSError:
        pass
    finally:
        os.close(handle)
    return False


def _may_delete(status: os.stat_result) -> bool:
    """Whether this process may delete the file.

    Root may delete any: its temporary files have the owner of the file that they replace.
    """
    return not hasattr(os, "geteuid") or os.geteuid() in (status.st_uid, 0)


def _lock(handle: int, wait: bool) -> bool | None:
    """Whether this process has locked the file; None if files cannot be locked, as in some network folders."""
    if _fcntl is None:
        return None
    try:
        _fcntl.flock(handle, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
