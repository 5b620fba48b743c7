"""The attributes of a file: owner, group, mode, extended attributes and access control lists."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

# Attributes that the user set. A file that would lose one of them is not replaced. Access control lists are among them.
_REQUIRED = ("user.", "system.posix_acl_access")
# Labels that control access to a file. Other labels of the system (capabilities, signatures) belong to the old bytes.
_LABELS = ("security.selinux", "security.SMACK64", "system.")


def take_over(path: str, source: str, status: os.stat_result) -> None:
    """Copies the attributes of the file `source` to the file `path`. `status` is the status of `source`.

    If the system does not allow to change the owner or the group, the file belongs to the user, as with any editor. Its
    mode then gives no user more rights than the old file did. Raises OSError if an attribute of the user cannot be
    kept.
    """
    mode = _change_owner(path, status)
    _keep_attributes(path, source)
    os.chmod(path, mode)  # last, because a change of the owner or of an access control list changes the mode


def _change_owner(path: str, status: os.stat_result) -> int:
    """Changes owner and group as far as allowed, and returns the mode that the file may have then."""
    mode = stat.S_IMODE(status.st_mode)
    if not hasattr(os, "chown"):
        return mode
    for owner in (status.st_uid, -1):
        with suppress(OSError):  # only root may change the owner, or set a group of which it is not a member
            os.chown(path, owner, status.st_gid)
            break
    now = os.stat(path)
    if now.st_uid != status.st_uid:
        mode &= ~stat.S_ISUID
    if now.st_gid != status.st_gid:
        mode &= ~stat.S_ISGID & (mode << 3 | ~0o070)  # the new group gets at most the rights that all users have
    return mode


def _keep_attributes(path: str, source: str) -> None:
    wanted = _attribute_names(source)
    for name in _attribute_names(path):
        if name not in wanted and name.startswith(
            _REQUIRED
        ):  # an access control list that the new file inherited from its folder
            os.removexattr(path, name)
    for name in wanted:
        if name.startswith(_REQUIRED):
            os.setxattr(path, name, os.getxattr(source, name))
        elif name.startswith(_LABELS):
            with suppress(OSError):
                os.setxattr(path, name, os.getxattr(source, name))


def _attribute_names(path: str) -> list[str]:
    """The names of a file's extended attributes; none if the system or the file system does not support them."""
    if not hasattr(os, "listxattr"):
        return []
    try:
        return os.listxattr(path)
    except OSError:
        return []
