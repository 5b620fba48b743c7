"""Writes files, whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from autofuse.results.file_attributes import take_over
from autofuse.results.regular_files import kind_of, read
from autofuse.results.temporary_files import temporary_beside


class ChangedMeanwhile(OSError):
    """A file no longer holds what was read of it, so that writing would lose somebody's work."""


def replace(path: str, content: bytes, expected: bytes | None = None) -> bool:
    """Puts `content` in the place of the file at `path`, in one step: a reader sees the old text or the new one.

    Mode, extended attributes and access control lists stay, and the owner where the system allows it. A link stays a
    link: the file that it leads to is replaced. A second hard link keeps the old text. Returns whether anything was
    written: with `expected`, what the file held when it was read, a file that holds `content` by now is left as it is.
    Raises OSError, with the old file untouched; ChangedMeanwhile where it holds something else than `expected`.
    """
    target = os.path.realpath(path)
    status = os.stat(target)
    if kind := kind_of(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)
    if not os.access(target, os.W_OK):  # replacing would go through: it is the folder that is written to
        raise PermissionError(errno.EACCES, "it is write-protected", path)

    def finish(temporary: str) -> None:
        take_over(temporary, target, status)
        if expected is not None:
            _require_unchanged(target, status, expected)

    try:
        _put(target, content, finish)
    except ChangedMeanwhile:
        if read(target) != content:
            raise
        return False  # another run was there at the same time
    return True


def put(path: str, content: bytes) -> None:
    """The same, and where there is no file yet one is made. Raises OSError, with the old file untouched."""
    if os.path.exists(path):
        replace(path, content)
    else:
        _put(os.path.abspath(path), content, lambda temporary: os.chmod(temporary, 0o666 & ~_umask()))


def put_private(path: str, content: bytes) -> None:
    """A file that only the user may read takes the place of whatever bears the name. Raises OSError like `put`."""
    _put(os.path.abspath(path), content, lambda temporary: None)


def _require_unchanged(target: str, status: os.stat_result, expected: bytes) -> None:
    """Asked last of all, when the new text is on the disk and only its name is missing."""
    now = os.stat(target)
    same = (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    if (now.st_dev, now.st_ino, now.st_mode, now.st_uid, now.st_gid) != same or read(target) != expected:
        raise ChangedMeanwhile(errno.EAGAIN, "it changed after it was read", target)


def _put(target: str, content: bytes, finish: Callable[[str], None]) -> None:
    """`finish(path)` gives the file its mode, before anybody sees it under its name."""
    with temporary_beside(target) as (file, temporary):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        finish(temporary)
        os.replace(temporary, target)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
