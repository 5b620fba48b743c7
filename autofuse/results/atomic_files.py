"""Writes files completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from autofuse.results.file_attributes import take_over
from autofuse.results.regular_files import kind_of, read
from autofuse.results.temporary_files import temporary_next_to


class ChangedMeanwhile(OSError):
    """A file has changed since it was read, so writing it would destroy these changes."""


def replace(path: str, content: bytes, expected: bytes | None = None) -> bool:
    """Replaces the content of the file at `path` in one step, so that a reader sees the old text or the new one.

    Mode, extended attributes and access control lists stay, and the owner if the system allows it. If `path` is a link,
    the file that it leads to is replaced. Another hard link to the file keeps the old text.

    Args:
        path: the file.
        content: the new content.
        expected: the content when the file was read. If the file holds `content` already, nothing is written.

    Returns:
        Whether the file was written.

    Raises:
        PermissionError: The file is write-protected.
        OSError: The file cannot be written. The old file is unchanged.
        ChangedMeanwhile: The file holds neither `expected` nor `content`.
    """
    target = os.path.realpath(path)
    status = os.stat(target)
    if kind := kind_of(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)
    if not os.access(
        target, os.W_OK
    ):  # A rename needs only a writable folder. The user protected the file, so it must not be replaced.
        raise PermissionError(errno.EACCES, "it is write-protected", path)

    def finish(temporary: str) -> None:
        take_over(temporary, target, status)
        if expected is not None:
            _require_unchanged(target, status, expected)

    try:
        _write_and_rename(target, content, finish)
    except ChangedMeanwhile:
        if read(target) != content:
            raise
        return False  # another run has written the same text
    return True


def put(path: str, content: bytes) -> None:
    """Like `replace`, but also creates a file that does not exist. Raises OSError, with the old file unchanged."""
    if os.path.exists(path):
        replace(path, content)
    else:
        _write_and_rename(os.path.abspath(path), content, lambda temporary: os.chmod(temporary, 0o666 & ~_umask()))


def put_private(path: str, content: bytes) -> None:
    """Writes a file that only the user may read, and replaces any file of that name. Raises OSError as `put` does."""
    _write_and_rename(os.path.abspath(path), content, lambda temporary: None)


def _require_unchanged(target: str, status: os.stat_result, expected: bytes) -> None:
    """The last check: the new text is on the disk already, and only the rename is missing.

    Raises:
        ChangedMeanwhile: The file changed after it was read.
    """
    now = os.stat(target)
    same = (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    if (now.st_dev, now.st_ino, now.st_mode, now.st_uid, now.st_gid) != same or read(target) != expected:
        raise ChangedMeanwhile(errno.EAGAIN, "it changed after it was read", target)


def _write_and_rename(target: str, content: bytes, finish: Callable[[str], None]) -> None:
    """Writes a temporary file and renames it. `finish(path)` sets its mode before the rename makes it visible."""
    with temporary_next_to(target) as (file, temporary):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        finish(temporary)
        os.replace(temporary, target)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
