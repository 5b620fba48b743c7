"""Reads files that may be anything. A pipe or a device is refused, so that no read waits."""

from __future__ import annotations

import errno
import os
import stat

_LARGEST = 256 * 2**20  # notebooks with pictures are large; larger files are not sources
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip
# O_NONBLOCK: opening a pipe would wait for a writer. O_NOCTTY: a terminal could become the controlling terminal.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0) | os.O_RDONLY
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def read(path: str, largest: int = _LARGEST) -> bytes:
    """The bytes of a file. Raises OSError with a sentence if it is not a regular file, or larger than `largest`."""
    return _read(_open(path), path, largest)


def read_own(path: str, largest: int = _LARGEST) -> bytes:
    """The bytes of a file that belongs to the user or to root and is no link.

    Raises:
        PermissionError: The file belongs to another user.
        OSError: It cannot be read.
    """
    handle = os.open(path, _AT_ONCE | _NO_LINK)
    if not is_own(os.fstat(handle)):
        os.close(handle)
        raise PermissionError(errno.EPERM, "it belongs to another user", path)
    return _read(handle, path, largest)


def is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to the user, or to root, who can change any file."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


def kind_of(mode: int) -> str:
    """The kind of a file that is not a regular file, for example "a pipe"; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _open(path: str) -> int:
    try:
        return os.open(path, _AT_ONCE)
    except OSError as error:
        if error.errno == errno.ENXIO and (kind := kind_of(os.stat(path).st_mode)):  # a socket cannot be opened
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", path) from error
        raise


def _read(handle: int, path: str, largest: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if kind := kind_of(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)
        content = file.read(largest + 1) if status.st_size <= largest else None
        if content is None or len(content) > largest:
            raise OSError(errno.EFBIG, f"it is larger than {largest // 2**20} MiB", path)
        return content
