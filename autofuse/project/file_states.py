"""The state of the files of a run: a digest of each text, and whether the file must be parsed at all.

The findings in one file can depend on any other file of the run. The cache therefore uses a digest of all files as a
key. This module reads bytes and parses nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

from autofuse.project.file_discovery import SourceFile
from autofuse.results.entries import digest, digest_of_bytes
from autofuse.results.regular_files import read

_CLOCK_TOLERANCE = 2 * 10**7  # nanoseconds by which the clock of the file system may be behind
_LARGEST = 1 << 20  # bytes; a larger file outside of the run is not read


@dataclass(frozen=True)
class FileState:
    """The state of one file.

    Attributes:
        file: The file.
        text: A digest of the text; "" if the file cannot be read.
        needs_parsing: Whether the file can have findings, because it mentions torch or because the user named it.
        state: Device, inode, size and modification time.
    """

    file: SourceFile
    text: str
    needs_parsing: bool
    state: tuple[int, ...]


def read_file_state(file: SourceFile) -> FileState:
    """Return the current state of a file."""
    try:
        state = _state(file.path)
        source = read(file.path)
    except OSError:
        return FileState(file, "", True, ())
    return FileState(file, digest_of_bytes(source), file.named or b"torch" in source, state)


def are_unchanged(files: Iterable[FileState]) -> bool:
    """Whether all files still have the recorded state."""
    try:
        return all(_state(s.file.path) == s.state for s in files)
    except OSError:
        return False


def digest_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return a digest of the file at each path; "" or the name of an error if there is no readable file."""
    return {path: _digest_path(path) for path in paths}


def are_settled(paths: Iterable[str], since: int) -> bool:
    """Whether no file at `paths` was written after the time `since`, in nanoseconds."""
    for path in paths:
        try:
            if os.stat(path).st_mtime_ns > since - _CLOCK_TOLERANCE:
                return False
        except OSError:
            continue
    return True


def _digest_path(path: str) -> str:
    try:
        return digest_of_bytes(read(path, _LARGEST))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"


def _state(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@cache
def digest_own_code() -> str:
    """Return a digest of the programs that check files: autofuse, its rules, Python and the installed packages.

    Installed packages count because they may announce rules. An installation changes a folder of `sys.path`, so the
    modification times of these folders are part of the digest.
    """
    package = Path(__file__).parent.parent
    shipped = import_module("autofuse.rules").__path__
    texts = blake2b(digest_size=20)
    for folder in (*(package / name for name in _FOLDERS), *map(Path, shipped)):
        for path in sorted(folder.rglob("*.py")):
            texts.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    texts.update((package / "rule.py").read_bytes())
    installed = tuple((entry, os.stat(entry).st_mtime_ns) for entry in sys.path if os.path.isdir(entry))
    return digest(texts.hexdigest(), sys.version, installed, os.environ.get("PYTHONPATH", ""))


# The folders of autofuse with code that determines the findings.
_FOLDERS = ("ir", "reasons", "canonical", "match", "source", "loading", "project", "results")


def digest_rule_sources(folders: Iterable[Path], before: Iterable[str]) -> str:
    """Return a digest of the files that the user's rules consist of.

    Rules may import any module. The digest therefore covers the files in `folders` and the files of all modules that
    were imported since `sys.modules` held the names `before`.
    """
    known = set(before)
    modules = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n not in known}
    files = {f for f in modules.values() if isinstance(f, str)}
    files |= {str(path) for folder in folders for path in folder.rglob("*.py")}
    return digest([(file, _digest_path(file)) for file in sorted(files)])
