"""What a command of profiles leaves behind: files, a summary on the terminal, an exit code. Runs nothing.

Files are replaced whole or not at all, and whether they can be written is asked before anything runs.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from autofuse.report import profile_page
from autofuse.report.profile import Profile
from autofuse.source.files import replace

DATA, PAGE, TRACE = "profile.json", "profile.html", "trace.json.gz"
DONE, FAILED = 0, 2
_WIDTH = 120


class Unwritable(ValueError):
    """Results have nowhere to go; the message says why."""


def say(sentence: str) -> None:
    """Something about the run, on standard error."""
    console = Console(stderr=True)
    console.print(f"autofuse: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


def unwritable(folder: Path, names: tuple[str, ...] = (DATA, PAGE, TRACE)) -> str | None:
    """Why files of these names cannot be written there, in a sentence; None if they can. Makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"the profile cannot be written to {folder} ({error.strerror or error}). Name a folder with --output."
    for path in (folder / name for name in names):
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            return f"{path} is there already and cannot be replaced. Name another folder with --output."
    return None


def put(path: Path, text: str) -> None:
    """Write a file, or replace the one that is there. Raises OSError, and then the old one is untouched."""
    content = text.encode("utf-8", errors="backslashreplace")
    if path.exists():
        replace(str(path), content)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".autofuse-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@dataclass(frozen=True)
class Results:
    """Where results go. rank: in a job of several processes each writes files of its own, and the first one prints."""

    folder: Path
    format: str
    rank: int = 0

    @classmethod
    def of(cls, options: Namespace, rank: int = 0) -> Results:
        """As the options say. Raises Unwritable where nothing can be written there."""
        results = cls(options.output, options.format, rank)
        if trouble := unwritable(results.folder, (results.name(DATA), results.name(PAGE), results.name(TRACE))):
            raise Unwritable(trouble)
        return results

    def name(self, file: str) -> str:
        """profile.json, and profile.rank1.json of the process numbered 1."""
        stem, _, ending = file.partition(".")
        return f"{stem}.rank{self.rank}.{ending}" if self.rank else file

    def path(self, file: str) -> Path:
        """Of the file of that name."""
        return self.folder / self.name(file)

    def finish(self, profile: Profile) -> int:
        """Write the profile and its page, and show it on stdout. Returns the exit code."""
        data = profile.to_json() + "\n"
        try:
            put(self.path(DATA), data)
            put(self.path(PAGE), profile_page.html(profile))
        except OSError as error:
            say(f"the profile cannot be written to {self.folder}: {error.strerror or error}.")
            return FAILED
        if self.rank:
            return DONE
        console = Console()
        if self.format == "json":
            console.file.write(data)
            return DONE
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDTH
        console.print(profile)
        written = ", ".join(str(self.path(name)) for name in (DATA, PAGE, TRACE) if self.path(name).is_file())
        console.print(f"Written: {written}", markup=False, highlight=False, soft_wrap=True)
        return DONE


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
