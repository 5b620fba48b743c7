"""Writes files, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress


def replace(path: str, content: bytes) -> None:
    """Puts `content` in the place of the file at `path`, in one step: a reader sees the old text or the new one.

    The mode stays, and the owner where the system allows it. A link stays a link: the file that it leads to is
    replaced. A second hard link keeps the old text. Raises OSError, with the old file untouched.
    """
    target = os.path.realpath(path)
    status = os.stat(target)
    if not os.access(target, os.W_OK):  # replacing would go through: it is the folder that is written to
        raise PermissionError(13, "it is write-protected", path)
    _put(target, content, lambda temporary: _take_over(temporary, status))


def put(path: str, content: bytes) -> None:
    """The same, and where there is no file yet one is made. Raises OSError, with the old file untouched."""
    if os.path.exists(path):
        replace(path, content)
    else:
        _put(os.path.abspath(path), content, lambda temporary: os.chmod(temporary, 0o666 & ~_umask()))


def _put(target: str, content: bytes, finish: Callable[[str], None]) -> None:
    """`finish(path)` gives the file its mode, before anybody sees it under its name."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".autofuse-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        finish(temporary)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _take_over(path: str, status: os.stat_result) -> None:
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # somebody else's file in a shared folder becomes ours, as with any editor
            os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, status.st_mode & 0o7777)
