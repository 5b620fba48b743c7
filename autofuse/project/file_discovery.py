"""Paths as a user gives them -> the Python files they mean, each with the settings that hold for it.

Knows folders and what to leave out of them. Does not open Python files.
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

# Folders that hold somebody else's code, or none. A folder given by name is walked all the same.
EXCLUDED = frozenset(
    """
    .bzr .direnv .eggs .git .hg .ipynb_checkpoints .mypy_cache .nox .pytest_cache .ruff_cache .svn .tox .venv .vscode
    __pycache__ __pypackages__ _build build dist node_modules site-packages venv
    """.split()
)


_ENDINGS = (".py", ".pyw", ".ipynb")


@dataclass(frozen=True)
class SourceFile:
    """One file to read. `named`: the user named it, so that it is read whatever it is called and whatever it holds.

    `tree` is the folder that the user named where the file was found in one.
    """

    path: str
    settings: FileSettings
    named: bool
    tree: str = ""


@dataclass(frozen=True)
class Trouble:
    """A sentence on what stands in the way of one path; the others go on. A mere remark is not an error."""

    message: str
    error: bool = True


def not_python(place: str, error: SyntaxError) -> Trouble:
    """What is said of a text that the Python which runs autofuse cannot parse, too new or too old for it, or broken."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Trouble(f"{place}: cannot be read by Python {version}: {error.msg}.")


@dataclass(frozen=True)
class Project:
    """`everywhere`: patterns of the configuration leave out named files too, as pre-commit wants it."""

    configuration: Configuration
    everywhere: bool = False

    def files(self, paths: Iterable[str]) -> Iterator[SourceFile | Trouble]:
        """Every Python file and notebook that `paths` mean, each once, folders in the order of their names.

        Raises ConfigError where a [tool.autofuse] that holds for one of them cannot be used.
        """
        seen: set[str] = set()
        for path in paths:
            for found in self._under(path):
                key = os.path.abspath(found.path) if isinstance(found, SourceFile) else found.message
                if key not in seen:
                    seen.add(key)
                    yield found

    def text(self, name: str | None) -> SourceFile:
        """What a text counts as that was not read from a file: the file of that name, or one in the working folder.

        Raises ConfigError like `files`.
        """
        folder = _absolute(os.path.dirname(name or ""))
        return SourceFile(name or "<stdin>", self.configuration.of(folder), named=True)

    def _under(self, path: str) -> Iterator[SourceFile | Trouble]:
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            yield Trouble(f"{visible(path)}: there is no such file or folder.")
        except (OSError, ValueError) as error:  # no right to look, a circle of links, a name that can be none
            yield Trouble(f"{visible(path)}: cannot be read: {getattr(error, 'strerror', None) or error}.")
        else:
            if os.path.isdir(path):
                yield from self._folder(path)
            elif kind := kind_of(mode):
                yield Trouble(f"{visible(path)}: cannot be read: it is {kind}, not a file.")
            else:
                yield from self._named(path)

    def _named(self, path: str) -> Iterator[SourceFile | Trouble]:
        settings = self.configuration.of(_absolute(os.path.dirname(path)))
        if not (self.everywhere and settings.excludes(path)):
            yield SourceFile(path, settings, named=True)

    def _folder(self, path: str) -> Iterator[SourceFile | Trouble]:
        empty = True
        for found in self._walk(path):
            empty = False
            yield found
        if empty:
            yield Trouble(f"{visible(path)}: there are no Python files to read in this folder.", error=False)

    def _walk(self, tree: str) -> Iterator[SourceFile | Trouble]:
        """What lies in a folder, at any depth. It keeps a list of what is to come: a tree may be deeper than calls."""
        pending: list[str | SourceFile] = [tree]
        while pending:
            following = pending.pop()
            if isinstance(following, SourceFile):
                yield following
                continue
            found = self._in_folder(following, tree)
            if isinstance(found, Trouble):
                yield found
            else:
                pending += reversed(found)

    def _in_folder(self, folder: str, tree: str) -> list[str | SourceFile] | Trouble:
        """The folders and files to read in one folder, in the order of their names."""
        try:
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=lambda e: e.name)
            if not os.access(folder, os.X_OK):  # its names can be read, and nothing that bears them
                return Trouble(f"{visible(folder)}: this folder cannot be read: Permission denied.")
        except OSError as error:
            return Trouble(f"{visible(folder)}: this folder cannot be read: {error.strerror or error}.")
        settings = self.configuration.of(_absolute(folder))
        found: list[str | SourceFile] = []
        for entry in ordered:
            if entry.is_dir(follow_symlinks=False):  # a link could lead in a circle, or out of the project
                if not _left_out(entry.path) and not settings.excludes(entry.path):
                    found.append(entry.path)
            elif entry.name.endswith(_ENDINGS) and _is_file(entry) and not settings.excludes(entry.path):
                found.append(SourceFile(entry.path.removeprefix("./"), settings, False, tree))
        return found


def leads_out(file: SourceFile) -> str | None:
    """Where a file that was found in a folder really is, if that is none of the folder's own; None if all is well.

    What the folder leaves out (.git, a virtual environment, what the configuration excludes) is not its own. A link
    that the user named leads where the user wants.
    """
    if not file.tree:
        return None
    tree, real = os.path.realpath(file.tree), os.path.realpath(file.path)
    if not real.startswith(os.path.join(tree, "")):
        return real
    folders = os.path.relpath(real, tree).split(os.sep)[:-1]
    within = [os.path.join(file.tree, *folders[: i + 1]) for i in range(len(folders))]
    excluded = any(map(file.settings.excludes, (*within, os.path.join(file.tree, os.path.relpath(real, tree)))))
    return real if excluded or any(map(_left_out, within)) else None


def _absolute(folder: str) -> Path:
    """A folder with all that are above it. Links stay, for a project may be linked together; behind one, `..` is
    something else than it looks like, so there the system is asked."""
    return Path(os.path.realpath(folder) if ".." in Path(folder).parts else os.path.abspath(folder))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in a circle
        return False


def _left_out(folder: str) -> bool:
    """Whether a folder is one that nobody means: by its name, or because it is a virtual environment."""
    return os.path.basename(folder) in EXCLUDED or os.path.exists(os.path.join(folder, "pyvenv.cfg"))
