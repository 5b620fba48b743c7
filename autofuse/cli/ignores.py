"""`autofuse check --add-ignore`: writes a comment for each finding, so that later runs report only new findings."""

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


def add_ignores(findings: Sequence[Finding], session: FilesRun) -> int:
    """Writes the comments, and reports findings that got none. Returns the exit code."""
    if session.from_stdin:
        session.out.say("autofuse: --add-ignore cannot write to standard input: name files.")
        return FAILED
    written = files = 0
    for path, group in groupby((f for f in findings if f.status != "declined"), key=lambda f: f.path):
        file_findings = list(group)
        if any(f.cell is not None for f in file_findings):
            session.out.say(f"{visible(path)}: --add-ignore does not edit notebooks: add the comments to the cells.")
            continue
        count = _write_comments(path, file_findings, session)
        written, files = written + count, files + bool(count)
        if count < len({(f.code, f.line) for f in file_findings}):
            session.out.say(f"{visible(path)}: some findings share a comment, or their line cannot have one.")
    session.out.say(f"{plural(written, 'comment')} written in {plural(files, 'file')}")
    return FAILED if session.failed else DONE


def _write_comments(path: str, findings: Sequence[Finding], session: FilesRun) -> int:
    name = visible(path)
    try:
        before = read(path)
        after, count = session.with_ignores(before, [(f.code, f.line, f.end_line) for f in findings])
        if count:
            replace(path, after, expected=before)
        return count
    except ChangedMeanwhile:
        session.out.say(f"{name}: not written, because it changed after it was read. Run autofuse again.")
    except OSError as error:
        session.out.say(f"{name}: cannot be written: {error.strerror or error}.")
    session.failed = True
    return 0
