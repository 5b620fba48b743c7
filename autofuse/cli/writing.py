"""Puts rewritten files in their places, and says so: each once, none that changed meanwhile, nothing left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from autofuse.cli.output import Output
from autofuse.display.findings import plural
from autofuse.project.file_discovery import SourceFile
from autofuse.results.atomic_files import ChangedMeanwhile, replace
from autofuse.results.temporary_files import remove_leftovers
from autofuse.results.visible_text import visible

if TYPE_CHECKING:
    from autofuse.project.run import Rewritten


class FilesOutput(Protocol):
    """What is known of the run: where its output goes, and whether something failed."""

    out: Output
    failed: bool

    @property
    def from_stdin(self) -> bool: ...


def written_back(result: Rewritten, session: FilesOutput) -> bool:
    """Puts a rewritten text where it belongs, and says so; whether that was done, and needed."""
    if session.from_stdin:
        sys.stdout.flush()
        sys.stdout.buffer.write(result.after)
        sys.stdout.buffer.flush()
        return True
    return bool(result.edits) and _written(result, session)


def _written(result: Rewritten, session: FilesOutput) -> bool:
    name = visible(result.path)
    try:
        names = os.stat(result.path).st_nlink
        written = replace(result.path, result.after, expected=result.before)
    except ChangedMeanwhile:
        session.failed = True
        session.out.say(f"{name}: changed after it was read, and is not overwritten. Run autofuse again.")
        return False
    except OSError as error:
        session.failed = True
        session.out.say(f"{name}: cannot be written: {error.strerror or error}.")
        return False
    if written:
        session.out.write([(f"{name}: ", "bold"), (plural(result.edits, "edit") + "\n", "")])
    if written and names > 1:
        session.out.say(f"{name}: had other names (hard links), under which the old text stays.")
    return written


def written_once(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Without links that were found in a folder, where the file that they lead to is rewritten itself."""
    links = {f for f in files if f.tree and os.path.islink(f.path)}
    if not links:
        return list(files)
    seen = {os.path.realpath(f.path) for f in files if f not in links}
    kept = []
    for file in files:
        real = os.path.realpath(file.path)
        if file not in links or real not in seen:
            kept.append(file)
            seen.add(real)
    return kept


def remove_leftovers_beside(files: Sequence[SourceFile]) -> None:
    """Deletes what a killed run left in the folders that files may be written to."""
    folders = {os.path.dirname(os.path.abspath(f.path)) for f in files}
    for file in files:
        if file.named:  # a link to another folder, perhaps
            folders.add(os.path.dirname(os.path.realpath(file.path)))
    for folder in folders:
        remove_leftovers(folder)
