"""The files of a run as they are before it: the digest of each text, and which of them have to be read at all.

What is found in a file may rest on any other file of the run, so a digest of all of them stands for what it may rest
on. Knows bytes; parses nothing.
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

_SETTLING = 2 * 10**7  # nanoseconds: by as much may the clock of files be behind
_LARGEST = 1 << 20  # of a file beside the run; what is larger is not read there


@dataclass(frozen=True)
class Surveyed:
    """One file: a digest of its text ("" where it cannot be read), whether it has to be parsed, and its state."""

    file: SourceFile
    text: str
    concerned: bool
    state: tuple[int, ...]


def surveyed(file: SourceFile) -> Surveyed:
    """A file as it is now."""
    try:
        state = _state(file.path)
        source = read(file.path)
    except OSError:
        return Surveyed(file, "", True, ())
    return Surveyed(file, digest_of_bytes(source), file.named or b"torch" in source, state)


def unchanged(files: Iterable[Surveyed]) -> bool:
    """Whether files are what they were when they were surveyed."""
    try:
        return all(_state(s.file.path) == s.state for s in files)
    except OSError:
        return False


def state_of_places(places: Sequence[str]) -> dict[str, str]:
    """For each place where another file was looked for: the digest of the file, or why there is none."""
    return {place: _digest_at(place) for place in places}


def settled(places: Iterable[str], since: int) -> bool:
    """Whether no file at these places was written since a time, in nanoseconds."""
    for place in places:
        try:
            if os.stat(place).st_mtime_ns > since - _SETTLING:
                return False
        except OSError:
            continue
    return True


def _digest_at(place: str) -> str:
    try:
        return digest_of_bytes(read(place, _LARGEST))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"


def _state(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@cache
def own_code() -> str:
    """A digest of what reads files: autofuse's own code and rules, Python, and what is installed beside it.

    Packages may announce rules. Installing one changes a folder of the search path.
    """
    package = Path(__file__).parent.parent
    shipped = import_module("autofuse.rules").__path__
    texts = blake2b(digest_size=20)
    for folder in (*(package / name for name in _READS), *map(Path, shipped)):
        for path in sorted(folder.rglob("*.py")):
            texts.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    texts.update((package / "rule.py").read_bytes())
    installed = tuple((entry, os.stat(entry).st_mtime_ns) for entry in sys.path if os.path.isdir(entry))
    return digest(texts.hexdigest(), sys.version, installed, os.environ.get("PYTHONPATH", ""))


_READS = ("ir", "reasons", "canonical", "match", "source", "loading", "project", "results")


def of_rules(folders: Iterable[Path], before: Iterable[str]) -> str:
    """A digest of what rules of the user's come from: their folders, and all modules that were imported since `before`.

    Rules may import modules of any place.
    """
    known = set(before)
    modules = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n not in known}
    files = {f for f in modules.values() if isinstance(f, str)}
    files |= {str(path) for folder in folders for path in folder.rglob("*.py")}
    return digest([(file, _digest_at(file)) for file in sorted(files)])
