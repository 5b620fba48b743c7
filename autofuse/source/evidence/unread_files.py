"""Were all given files read that may concern an edit? A search ends after a number of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autofuse.rule import Fails
from autofuse.source.evidence.claim import Claim, Missing


def all_files_were_read(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if another question about this file ended before it had read every file."""
    unread = claim.files.first_unread_file(claim.defined.scope) if claim.files is not None else ""
    if unread:
        name = Path(unread).name
        yield Missing(f"assumes that {name}, one of too many files to read, changes nothing that runs here")
