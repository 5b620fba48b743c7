"""The user's cache folder: where it is, and that nobody else can write to it. This file does not know its contents."""

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
    """Makes the folder, for the user alone. Raises OSError where it cannot be made."""
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_own(here)
    if not os.environ.get(FOLDER) and here.stat().st_mode & 0o077:  # made before; a folder of the user's stays as it is
        here.chmod(0o700)


def require_own(here: Path) -> None:
    """Raises PermissionError where the folder is somebody else's, who may put anything into it."""
    if not is_own(here.stat()):
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(here))
