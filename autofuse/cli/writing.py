"""Writes rewritten files: each file once, no file that changed after it was read, and no temporary file is left."""

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
    from autofuse.project.run import RewriteResult


class FilesOutput(Protocol):
    """The part of a run that writing needs: its output, and whether something failed."""

    out: Output
    failed: bool

    @property
    def from_stdin(self) -> bool: ...


def write_result(result: RewriteResult, session: FilesOutput) -> bool:
    """Writes a rewritten text to its file or to standard output. Returns whether something was written."""
    if session.from_stdin:
        sys.stdout.flush()
        sys.stdout.buffer.write(result.after)
        sys.stdout.buffer.flush()
        return True
    return bool(result.edits) and _write_file(result, session)


def _write_file(result: RewriteResult, session: FilesOutput) -> bool:
    name = visible(result.path)
    try:
        names = os.stat(result.path).st_nlink
        written = replace(result.path, result.after, expected=result.before)
    except ChangedMeanwhile:
        session.failed = True
        session.out.say(f"{name}: not written, because it changed after it was read. Run autofuse again.")
        return False
    except OSError as error:
        session.failed = True
        session.out.say(f"{name}: cannot be written: {error.strerror or error}.")
        return False
    if written:
        session.out.write([(f"{name}: ", "bold"), (plural(result.edits, "edit") + "\n", "")])
    if written and names > 1:
        session.out.say(f"{name}: has other names (hard links), which keep the old text.")
    return written


def drop_repeated_links(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Removes links from the files if the file that they point to is rewritten itself.

    A link that is named on the command line stays.
    """
    links = {f for f in files if f.tree and os.path.islink(f.path)}
    if not links:
        return list(files)
    seen = {os.path.realpath(f.path) for f in files if f not in links}
    remaining = []
    for file in files:
        real = os.path.realpath(file.path)
        if file not in links or real not in seen:
            remaining.append(file)
            seen.add(real)
    return remaining


def remove_leftovers_near(files: Sequence[SourceFile]) -> None:
    """Deletes temporary files of a killed run in the folders that files may be written to."""
    folders = {os.path.dirname(os.path.abspath(f.path)) for f in files}
    for file in files:
        if file.named:  # a link to another folder, perhaps
            folders.add(os.path.dirname(os.path.realpath(file.path)))
    for folder in folders:
        remove_leftovers(folder)
