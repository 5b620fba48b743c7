"""Entries in a folder of the cache: plain data by name, each in a file of its own that is whole or counts as missing.

A file begins with a digest of what follows, so one that was cut off or changed is no entry. Writing replaces a file in
one step, so of several processes the last one wins and a reader sees a whole text. Nothing here ever stops a run: what
cannot be read is missing, what cannot be written is forgotten. The folder and its files are for the user alone, and
what is somebody else's is not read. Knows files and JSON; must not know what is kept in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from autofuse.results.cache_folder import make, require_own
from autofuse.results.regular_files import read_own
from autofuse.results.temporary_files import remove_leftovers, temporary_beside

_ENDING = ".entry"
_LARGEST = 64 * 2**20  # bytes of all entries together; the oldest go first
_KEPT = 0.75  # of that, once there are too many


def digest(*parts: object) -> str:
    """A name for plain values: equal values have equal names, and others do not."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def digest_of_bytes(content: bytes) -> str:
    """A name for a text."""
    return blake2b(content, digest_size=20).hexdigest()


@dataclass(frozen=True)
class Entries:
    """The entries of one folder."""

    folder: Path

    def get(self, name: str) -> dict[str, Any]:
        """What is kept under a name; empty where nothing is, or nothing whole."""
        try:
            content = read_own(str(self._path(name)))
            stated, _, text = content.partition(b"\n")
            if stated.decode() != digest_of_bytes(text):
                return {}
            found = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def put(self, name: str, entry: dict[str, Any]) -> bool:
        """Keeps an entry in the place of the one that bore the name; whether that could be done."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
        try:
            make(self.folder.parent)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            require_own(self.folder)
            with temporary_beside(str(self._path(name))) as (file, temporary):
                file.write(digest_of_bytes(text).encode() + b"\n" + text)
                file.flush()  # not to the disk itself: what a power failure cuts off is no entry
                os.replace(temporary, self._path(name))
        except OSError:
            return False
        return True

    def sizes(self) -> list[tuple[float, int, Path]]:
        """When each entry was written, its bytes and its file; the oldest first."""
        return sorted(self._sizes())

    def _sizes(self) -> Iterator[tuple[float, int, Path]]:
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.endswith(_ENDING):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, status.st_size, Path(entry.path)
        except OSError:
            return

    def trim(self, largest: int = _LARGEST) -> None:
        """Deletes the oldest entries where all together are too large, and what killed processes left."""
        remove_leftovers(str(self.folder))
        found = self.sizes()
        size = sum(s for _, s, _ in found)
        if size <= largest:
            return
        for _, bytes_of_it, path in found:
            if size <= largest * _KEPT:
                break
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue
            size -= bytes_of_it

    def clear(self) -> int:
        """Deletes every entry; returns how many there were. Raises OSError where one cannot be deleted."""
        found = self.sizes()
        for _, _, path in found:
            path.unlink(missing_ok=True)
        remove_leftovers(str(self.folder))
        return len(found)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"
