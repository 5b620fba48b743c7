"""Finds the Python files and notebooks below the paths that a user names, and the settings of each file.

This module decides which folders and files are skipped. It does not open Python files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autofuse.project.config import Configuration, FileSettings
from autofuse.results.regular_files import kind_of
from autofuse.results.visible_text import visible

# Folders with code of other projects, or with no code. They are searched only if the user names them.
EXCLUDED = frozenset(
    """
    .bzr .direnv .eggs .git .hg .ipynb_checkpoints .mypy_cache .nox .pytest_cache .ruff_cache .svn .tox .venv .vscode
    __pycache__ __pypackages__ _build build dist node_modules site-packages venv
    """.split()
)


_ENDINGS = (".py", ".pyw", ".ipynb")


@dataclass(frozen=True)
class SourceFile:
    """One file to check.

    Attributes:
        path: The path of the file.
        settings: The settings that apply to it.
        named: Whether the user named the file itself. Such a file is read whatever its name and content are.
        tree: The folder that the user named, if the file was found in a folder.
    """

    path: str
    settings: FileSettings
    named: bool
    tree: str = ""


@dataclass(frozen=True)
class Problem:
    """A message about one path. The run continues with the other paths. A remark has `error=False`."""

    message: str
    error: bool = True


def syntax_problem(place: str, error: SyntaxError) -> Problem:
    """Return the problem of a text that the running Python cannot parse. Its syntax may be of another version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Problem(f"{place}: cannot be read by Python {version}: {error.msg}.")


@dataclass(frozen=True)
class Project:
    """The files of a project.

    Attributes:
        configuration: The settings of the folders.
        force_exclude: Whether `exclude` patterns also apply to files that the user names. pre-commit needs this.
    """

    configuration: Configuration
    force_exclude: bool = False

    def files(self, paths: Iterable[str]) -> Iterator[SourceFile | Problem]:
        """Yield every Python file and notebook at or below `paths`.

        Each file appears once. The content of a folder is sorted by name.

        Raises:
            ConfigError: A [tool.autofuse] that applies to one of the files is not valid.
        """
        seen: set[str] = set()
        for path in paths:
            for file in self._find_at(path):
                key = os.path.abspath(file.path) if isinstance(file, SourceFile) else file.message
                if key not in seen:
                    seen.add(key)
                    yield file

    def text(self, name: str | None) -> SourceFile:
        """Return the file for a text that does not come from the disk, such as standard input.

        Args:
            name: The path that the text has; None for a text in the working folder.

        Raises:
            ConfigError: The [tool.autofuse] that applies to the text is not valid.
        """
        folder = _absolute(os.path.dirname(name or ""))
        return SourceFile(name or "<stdin>", self.configuration.settings_for(folder), named=True)

    def _find_at(self, path: str) -> Iterator[SourceFile | Problem]:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            yield Problem(f"{visible(path)}: there is no such file or folder. Check the path.")
        except (OSError, ValueError) as error:  # no permission, a cycle of links, a name that is not valid
            yield Problem(f"{visible(path)}: cannot be read: {getattr(error, 'strerror', None) or error}.")
        else:
            if os.path.isdir(path):
                yield from self._find_in_folder(path)
            elif kind := kind_of(mode):
                yield Problem(f"{visible(path)}: cannot be read: it is {kind}, not a file.")
            else:
                yield from self._find_named_file(path)

    def _find_named_file(self, path: str) -> Iterator[SourceFile | Problem]:
        settings = self.configuration.settings_for(_absolute(os.path.dirname(path)))
        if not (self.force_exclude and settings.excludes(path)):
            yield SourceFile(path, settings, named=True)

    def _find_in_folder(self, path: str) -> Iterator[SourceFile | Problem]:
        empty = True
        for file in self._walk(path):
            empty = False
            yield file
        if empty:
            message = "there are no Python files to read in this folder. Name a folder with .py or .ipynb files."
            yield Problem(f"{visible(path)}: {message}", error=False)

    def _walk(self, tree: str) -> Iterator[SourceFile | Problem]:
        """Yield the files in a folder at any depth.

        The loop uses a list instead of recursion: folders may be nested more deeply than Python's recursion limit.
        """
        pending: list[str | SourceFile] = [tree]
        while pending:
            entry = pending.pop()
            if isinstance(entry, SourceFile):
                yield entry
                continue
            content = self._list_folder(entry, tree)
            if isinstance(content, Problem):
                yield content
            else:
                pending += reversed(content)

    def _list_folder(self, folder: str, tree: str) -> list[str | SourceFile] | Problem:
        """Return the folders and files to read in one folder, sorted by name."""
        try:
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=lambda e: e.name)
            if not os.access(folder, os.X_OK):  # the names can be listed, but no file can be opened
                return Problem(f"{visible(folder)}: this folder cannot be read: Permission denied.")
        except OSError as error:
            return Problem(f"{visible(folder)}: this folder cannot be read: {error.strerror or error}.")
        settings = self.configuration.settings_for(_absolute(folder))
        content: list[str | SourceFile] = []
        for entry in ordered:
            if entry.is_dir(follow_symlinks=False):  # a link could form a cycle, or point out of the project
                if not _is_skipped_folder(entry.path) and not settings.excludes(entry.path):
                    content.append(entry.path)
            elif entry.name.endswith(_ENDINGS) and _is_file(entry) and not settings.excludes(entry.path):
                content.append(SourceFile(entry.path.removeprefix("./"), settings, False, tree))
        return content


def outside_target(file: SourceFile) -> str | None:
    """Return the real path of a file if a link leads out of the folder that was searched, else None.

    A skipped folder (.git, a virtual environment, an excluded folder) counts as outside. Links that the user named
    are always allowed.
    """
    if not file.tree:
        return None
    tree, real = os.path.realpath(file.tree), os.path.realpath(file.path)
    if not real.startswith(os.path.join(tree, "")):
        return real
    folders = os.path.relpath(real, tree).split(os.sep)[:-1]
    within = [os.path.join(file.tree, *folders[: i + 1]) for i in range(len(folders))]
    excluded = any(map(file.settings.excludes, (*within, os.path.join(file.tree, os.path.relpath(real, tree)))))
    return real if excluded or any(map(_is_skipped_folder, within)) else None


def _absolute(folder: str) -> Path:
    """Return an absolute path, in which `folder.parents` are the parent folders.

    Links are not resolved, because the parts of a project may be linked. A path with `..` is resolved: after a link,
    `..` is not the folder that the text of the path suggests.
    """
    return Path(os.path.realpath(folder) if ".." in Path(folder).parts else os.path.abspath(folder))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a cycle of links
        return False


def _is_skipped_folder(folder: str) -> bool:
    """Whether the search skips a folder, because of its name or because it is a virtual environment."""
    return os.path.basename(folder) in EXCLUDED or os.path.exists(os.path.join(folder, "pyvenv.cfg"))
