"""Reads source files and replaces them, whole or not at all."""

from __future__ import annotations

import os
import tempfile
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
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".autofuse-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _take_over(temporary, status)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _take_over(path: str, status: os.stat_result) -> None:
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # somebody else's file in a shared folder becomes ours, as with any editor
            os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, status.st_mode & 0o7777)
