"""Files that will take the place of others: each is held by a lock while it is written.

A process that is killed cannot delete its file. The lock ends with the process, so whoever comes next can tell what
was left from what is being written.
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

_PREFIX, _SUFFIX = ".autofuse-", ".tmp"  # never walked as source: the ending is none of Python's
_NAME = re.compile(r"\.autofuse-[0-9a-f]{16}\.tmp")
_OLD = 3600.0  # seconds: no file is written for so long; asked only where there are no locks
_LOOK = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none


@contextmanager
def temporary_beside(target: str) -> Iterator[tuple[IO[bytes], str]]:
    """An empty file that only we can read, in the folder of `target`, and its path.

    If the block raises, the file is gone; else it is the block's to move. Raises OSError where none can be made.
    """
    while True:
        # The name is ours before the file is there: an interruption can come between any two instructions.
        path = os.path.join(os.path.dirname(target), f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}")
        try:
            with open(path, "xb", opener=_for_us_alone) as file:
                if _lock(file.fileno(), wait=True) is None or is_still(file.fileno(), path):
                    yield file, path
                    return
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


def is_still(handle: int, path: str) -> bool:
    """Whether the open file is the one that bears the name: what has just been locked may have been deleted before."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _removed(path: str) -> bool:
    try:
        handle = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        status, locked = os.fstat(handle), _lock(handle, wait=False)
        left = time.time() - status.st_mtime > _OLD if locked is None else locked
        if left and _deletable(status) and is_still(handle, path):
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
