"""`autofuse check --add-ignore`: a comment for each finding, so that only what comes later is told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from autofuse.cli.files_run import FilesRun
from autofuse.cli.output import DONE, FAILED
from autofuse.display.findings import plural
from autofuse.results.atomic_files import ChangedMeanwhile, replace
from autofuse.results.findings import Finding
from autofuse.results.regular_files import read
from autofuse.results.visible_text import visible


def add_ignores(found: Sequence[Finding], session: FilesRun) -> int:
    """Writes the comments, and says where that could not be done. Returns an exit code."""
    if session.from_stdin:
        session.out.say("autofuse: --add-ignore writes into files; name some.")
        return FAILED
    written = files = 0
    for path, group in groupby((f for f in found if f.status != "declined"), key=lambda f: f.path):
        here = list(group)
        if any(f.cell is not None for f in here):
            session.out.say(f"{visible(path)}: comments are not written into notebooks; add them to the cells.")
            continue
        count = _added(path, here, session)
        written, files = written + count, files + bool(count)
        if count < len({(f.code, f.line) for f in here}):
            session.out.say(f"{visible(path)}: some findings share a comment, or stand where none can be written.")
    session.out.say(f"{plural(written, 'comment')} written in {plural(files, 'file')}")
    return FAILED if session.failed else DONE


def _added(path: str, found: Sequence[Finding], session: FilesRun) -> int:
    name = visible(path)
    try:
        before = read(path)
        after, count = session.with_ignores(before, [(f.code, f.line, f.end_line) for f in found])
        if count:
            replace(path, after, expected=before)
        return count
    except ChangedMeanwhile:
        session.out.say(f"{name}: changed after it was read, and is not overwritten. Run autofuse again.")
    except OSError as error:
        session.out.say(f"{name}: cannot be written: {error.strerror or error}.")
    session.failed = True
    return 0
