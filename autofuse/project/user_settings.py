"""What the user says for all projects: whose rules may be executed, by a file in the home folder or the environment.

Nothing of a checked tree can change it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from autofuse.project.config import ConfigError, contents_of, named
from autofuse.results.regular_files import is_own

ALLOW_RULES = "AUTOFUSE_ALLOW_RULES"  # an environment variable
_KEY = "allow-rules"
_ANSWERS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Allowed:
    """Projects whose rules may be executed though the command was not started in them: all, or those in `folders`."""

    every: bool = False
    folders: tuple[Path, ...] = ()

    def covers(self, project: Path) -> bool:
        """Whether a project's folder is allowed, or lies in one that is."""
        real = Path(os.path.realpath(project))
        return self.every or any(real.is_relative_to(os.path.realpath(folder)) for folder in self.folders)


def allowed_by_user() -> Allowed:
    """What the user allows for all projects. Raises ConfigError where it cannot be understood.

    AUTOFUSE_ALLOW_RULES holds 1, 0 or folders, divided as in PATH. Where it is not set, `allow-rules` of the user's
    configuration holds true, false or a list of folders.
    """
    given = os.environ.get(ALLOW_RULES)
    if given is None:
        file = user_file()
        return Allowed() if file is None else _of_file(file)
    if given.strip().lower() in _ANSWERS:
        return Allowed(_ANSWERS[given.strip().lower()])
    return _of_folders(given.split(os.pathsep), ALLOW_RULES)


def user_file() -> Path | None:
    """`autofuse/config.toml` below XDG_CONFIG_HOME, else below %APPDATA% on Windows and ~/.config elsewhere.

    None for lack of a home. Source: the XDG base directory specification, which wants relative paths ignored.
    """
    for variable in ("XDG_CONFIG_HOME", "APPDATA" if sys.platform == "win32" else ""):
        common = Path(os.environ.get(variable, ""))
        if common.is_absolute():
            return common / "autofuse" / "config.toml"
    try:
        return Path.home() / ".config" / "autofuse" / "config.toml"
    except RuntimeError:
        return None


def _of_file(file: Path) -> Allowed:
    whole = contents_of(file, mention=b"")
    if whole is None:
        return Allowed()
    if not is_own(os.stat(file)):
        raise ConfigError(f"{named(file)}: belongs to somebody else. Take it over, or remove it.")
    if other := sorted(whole.keys() - {_KEY}):
        raise ConfigError(f"{named(file)}: has no key `{other[0]}`. It may have `{_KEY}`.")
    value = whole.get(_KEY, False)
    if isinstance(value, bool):
        return Allowed(value)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{named(file)}: `{_KEY}` must be true, false or a list of folders, and is {value!r}.")
    return _of_folders(value, f"{named(file)}: `{_KEY}`")


def _of_folders(texts: list[str], said_by: str) -> Allowed:
    """A relative path would mean another folder in each working folder, and so one of a stranger's."""
    folders = [Path(text).expanduser() for text in texts if text]
    for folder in folders:
        if not folder.is_absolute():
            raise ConfigError(f"{said_by} names {str(folder)!r}. Write whole paths, such as /home/me/work.")
    return Allowed(folders=tuple(folders))
