"""The user's cache folder: where it is, and checks that no other user can write to it.

This file does not depend on the contents of the folder.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from autofuse.results.regular_files import is_own

FOLDER = "AUTOFUSE_CACHE_DIR"  # an environment variable


def folder() -> Path | None:
    """AUTOFUSE_CACHE_DIR if that is set, else `autofuse` below XDG_CACHE_HOME or ~/.cache; None if there is no home.

    Source: the XDG base directory specification, which says to ignore relative paths.
    """
    if own := os.environ.get(FOLDER):
        return Path(own).expanduser().absolute()
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if common.is_absolute():
        return common / "autofuse"
    try:
        return Path.home() / ".cache" / "autofuse"
    except RuntimeError:
        return None


def make(here: Path) -> None:
    """Creates the folder, for the user alone. Raises OSError if it cannot be created."""
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_own(here)
    if (
        not os.environ.get(FOLDER) and here.stat().st_mode & 0o077
    ):  # autofuse made it, perhaps with another umask; a folder that the user named keeps its mode
        here.chmod(0o700)


def require_own(here: Path) -> None:
    """Check that the folder belongs to the user. Another owner could put anything into it.

    Raises:
        PermissionError: It belongs to another user.
    """
    if not is_own(here.stat()):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(here))
