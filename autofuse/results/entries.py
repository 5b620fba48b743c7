"""Entries in a folder of the cache: plain data by name, each in its own file.

A file begins with a digest of its content, so a truncated or changed file is not an entry. Writing replaces a file in
one step: if several processes write, the last one wins, and a reader never sees a part. No error stops a run: an entry
that cannot be read is missing, and one that cannot be written is lost. The folder and its files are for the user alone.
A file of another user is not read. This file does not depend on the content of the entries.
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
from autofuse.results.temporary_files import remove_leftovers, temporary_next_to

_ENDING = ".entry"
_LARGEST = 64 * 2**20  # bytes of all entries together; beyond that the oldest are deleted
_KEPT = 0.75  # the fraction of _LARGEST that remains after old entries are deleted


def digest(*parts: object) -> str:
    """A name for plain values. Equal values have equal names, and different values have different names."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def digest_of_bytes(content: bytes) -> str:
    """A name for bytes."""
    return blake2b(content, digest_size=20).hexdigest()


@dataclass(frozen=True)
class Entries:
    """The entries of one folder."""

    folder: Path

    def get(self, name: str) -> dict[str, Any]:
        """The entry of this name; empty if there is none, or if its file is incomplete."""
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
        """Stores an entry under a name and replaces an earlier one. Returns whether that was possible."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
        try:
            make(self.folder.parent)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            require_own(self.folder)
            with temporary_next_to(str(self._path(name))) as (file, temporary):
                file.write(digest_of_bytes(text).encode() + b"\n" + text)
                file.flush()  # no fsync: after a power failure a truncated file is not an entry
                os.replace(temporary, self._path(name))
        except OSError:
            return False
        return True

    def sizes(self) -> list[tuple[float, int, Path]]:
        """The time, the size in bytes and the file of each entry, the oldest first."""
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
        """Deletes the oldest entries if all together are too large, and the temporary files of killed processes."""
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
        """Deletes all entries and returns their number. Raises OSError if one cannot be deleted."""
        found = self.sizes()
        for _, _, path in found:
            path.unlink(missing_ok=True)
        remove_leftovers(str(self.folder))
        return len(found)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"
