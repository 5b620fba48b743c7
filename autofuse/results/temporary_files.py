"""Files that will take the place of others: each is held by a lock while it is written.

A process that is killed cannot delete its file. The lock ends with the process, so whoever comes next can tell what
was left from what is being written.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

_PREFIX, _SUFFIX = ".autofuse-", ".tmp"  # never walked as source: the ending is none of Python's
_NAME = re.compile(r"\.autofuse-[a-z0-9_]{8}\.tmp")
_OLD = 3600.0  # seconds: no file is written for so long; asked only where there are no locks
_LOOK = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none


@contextmanager
def temporary_beside(target: str) -> Iterator[tuple[IO[bytes], str]]:
    """An empty file that only we can read, in the folder of `target`, and its path.

    If the block raises, the file is gone; else it is the block's to move. Raises OSError where none can be made.
    """
    handle, path = _held(os.path.dirname(target))
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, path
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def remove_leftovers(folder: str) -> list[str]:
    """Deletes what killed processes left in a folder; returns the paths. A file that is being written stays."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return []
    return [path for path in found if _removed(path)]


def _held(folder: str) -> tuple[int, str]:
    while True:
        handle, path = tempfile.mkstemp(dir=folder, prefix=_PREFIX, suffix=_SUFFIX)
        if _lock(handle, wait=True) is None or _same(handle, path):
            return handle, path
        os.close(handle)  # deleted as a leftover, between being made and being locked


def _removed(path: str) -> bool:
    try:
        handle = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        status, locked = os.fstat(handle), _lock(handle, wait=False)
        left = time.time() - status.st_mtime > _OLD if locked is None else locked
        if left and _deletable(status) and _same(handle, path):
            os.unlink(path)
            return True
    except OSError:
        pass
    finally:
        os.close(handle)
    return False


def _deletable(status: os.stat_result) -> bool:
    """Whether it is ours; root gives its files to the owner of what they replace."""
    return not hasattr(os, "geteuid") or os.geteuid() in (status.st_uid, 0)


def _lock(handle: int, wait: bool) -> bool | None:
    """Whether the file is locked by us now; None where files cannot be locked, as in some network folders."""
    if _fcntl is None:
        return None
    try:
        _fcntl.flock(handle, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _same(handle: int, path: str) -> bool:
    """Whether the open file is the one that bears the name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False
