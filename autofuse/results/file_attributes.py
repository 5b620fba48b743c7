"""What a file is besides its bytes: owner, group, mode, extended attributes and access control lists."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

# What is the user's own: a file that would lose one of these is not replaced. An access control list is one of them.
_REQUIRED = ("user.", "system.posix_acl_access")
# Labels that say who may touch a file. Others of the system (capabilities, signatures) belong to the old bytes alone.
_LABELS = ("security.selinux", "security.SMACK64", "system.")


def take_over(path: str, source: str, status: os.stat_result) -> None:
    """Gives the file at `path` what the file at `source` has, `status` being that one's.

    Where the system does not allow the owner or the group, the file is ours, as with any editor; then it gives nobody
    a right that the old one did not. Raises OSError where an attribute of the user's cannot be kept.
    """
    mode = _owned(path, status)
    _keep_attributes(path, source)
    os.chmod(path, mode)  # last: a change of the owner or of a list changes it


def _owned(path: str, status: os.stat_result) -> int:
    """Hands the file to owner and group, as far as allowed; returns the mode that it may then have."""
    mode = stat.S_IMODE(status.st_mode)
    if not hasattr(os, "chown"):
        return mode
    for owner in (status.st_uid, -1):
        with suppress(OSError):  # one may give away nothing, and take no group that one is not in
            os.chown(path, owner, status.st_gid)
            break
    now = os.stat(path)
    if now.st_uid != status.st_uid:
        mode &= ~stat.S_ISUID
    if now.st_gid != status.st_gid:
        mode &= ~stat.S_ISGID & (mode << 3 | ~0o070)  # another group may do what everybody may, at most
    return mode


def _keep_attributes(path: str, source: str) -> None:
    wanted = _names(source)
    for name in _names(path):
        if name not in wanted and name.startswith(_REQUIRED):  # a list that the folder gives to new files
            os.removexattr(path, name)
    for name in wanted:
        if name.startswith(_REQUIRED):
            os.setxattr(path, name, os.getxattr(source, name))
        elif name.startswith(_LABELS):
            with suppress(OSError):
                os.setxattr(path, name, os.getxattr(source, name))


def _names(path: str) -> list[str]:
    """The names of a file's extended attributes; none where the system or the folder has no such thing."""
    if not hasattr(os, "listxattr"):
        return []
    try:
        return os.listxattr(path)
    except OSError:
        return []
