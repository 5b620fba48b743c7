"""Reads settings that hold for all projects of the user: which projects may execute their own rules.

The settings come from the environment or from a file in the home folder. No checked project can change them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from autofuse.project.config import ConfigError, display_path, read_toml
from autofuse.results.regular_files import is_own

ALLOW_RULES = "AUTOFUSE_ALLOW_RULES"  # an environment variable
_KEY = "allow-rules"
_ANSWERS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class AllowedProjects:
    """The projects that may execute their rules from any working folder: all, or those in `folders`."""

    every: bool = False
    folders: tuple[Path, ...] = ()

    def covers(self, project: Path) -> bool:
        """Whether the folder of a project is one of `folders`, or is inside one of them."""
        real = Path(os.path.realpath(project))
        return self.every or any(real.is_relative_to(os.path.realpath(folder)) for folder in self.folders)


def read_user_permission() -> AllowedProjects:
    """Return the projects that the user allows to execute rules.

    AUTOFUSE_ALLOW_RULES contains 1, 0 or folders, which are separated as in PATH. If it is not set, `allow-rules` in
    the user's configuration file is used: true, false or a list of folders.

    Raises:
        ConfigError: The setting is not valid.
    """
    text = os.environ.get(ALLOW_RULES)
    if text is None:
        file = user_configuration_file()
        return AllowedProjects() if file is None else _read_file(file)
    if text.strip().lower() in _ANSWERS:
        return AllowedProjects(_ANSWERS[text.strip().lower()])
    return _read_folders(text.split(os.pathsep), ALLOW_RULES)


def user_configuration_file() -> Path | None:
    """Return the path of `autofuse/config.toml` for this user, or None if there is no home folder.

    The parent folder is XDG_CONFIG_HOME if this is set. Otherwise it is %APPDATA% on Windows and ~/.config elsewhere.
    Relative paths are ignored, as the XDG base directory specification demands.
    """
    for variable in ("XDG_CONFIG_HOME", "APPDATA" if sys.platform == "win32" else ""):
        parent = Path(os.environ.get(variable, ""))
        if parent.is_absolute():
            return parent / "autofuse" / "config.toml"
    try:
        return Path.home() / ".config" / "autofuse" / "config.toml"
    except RuntimeError:
        return None


def _read_file(file: Path) -> AllowedProjects:
    content = read_toml(file, mention=b"")
    if content is None:
        return AllowedProjects()
    if not is_own(os.stat(file)):
        raise ConfigError(f"{display_path(file)}: belongs to another user. Change its owner, or remove it.")
    if unknown := sorted(content.keys() - {_KEY}):
        raise ConfigError(f"{display_path(file)}: has no key `{unknown[0]}`. It may have `{_KEY}`.")
    value = content.get(_KEY, False)
    if isinstance(value, bool):
        return AllowedProjects(value)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{display_path(file)}: `{_KEY}` must be true, false or a list of folders, and is {value!r}.")
    return _read_folders(value, f"{display_path(file)}: `{_KEY}`")


def _read_folders(texts: list[str], source: str) -> AllowedProjects:
    """Read a list of folders. Relative paths are refused: their meaning depends on the working folder.

    Args:
        texts: The paths. Empty texts are ignored.
        source: The setting, for the error message.
    """
    folders = [Path(text).expanduser() for text in texts if text]
    for folder in folders:
        if not folder.is_absolute():
            raise ConfigError(f"{source} names {str(folder)!r}. Write an absolute path, such as /home/me/work.")
    return AllowedProjects(folders=tuple(folders))
