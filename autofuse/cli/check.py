"""`autofuse check`: what is found in files, in many formats, without what a baseline knows. Needs no torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofuse.cli.files_run import FilesRun
from autofuse.cli.ignores import add_ignores
from autofuse.cli.output import DONE, FAILED, FINDINGS
from autofuse.cli.sentences import sentences
from autofuse.display.findings import counted, line_of, plural
from autofuse.display.formats import FORMATS, TEXT, statistics_json, statistics_text
from autofuse.project.baseline import compared, record
from autofuse.project.file_discovery import SourceFile
from autofuse.project.memory import FileFindings
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange
from autofuse.results.visible_text import visible

if TYPE_CHECKING:
    from autofuse.project.run import Checked

_Fixes = dict[Finding, tuple[LineChange, ...]]


def main(options: Namespace) -> int:
    """Report what could be fused. Returns 1 where something was found that the baseline does not know."""
    session = FilesRun(options)
    if options.write_baseline and not options.baseline:
        session.out.say("autofuse: --write-baseline writes the file that --baseline names; name one.")
        return FAILED
    with_fixes = options.format == "sarif"
    at_once = options.format in TEXT and not (options.statistics or options.baseline or options.add_ignore)

    def work(checked: Checked, file: SourceFile) -> _Fixes:
        return session.run.fixes(checked, file) if with_fixes else {}

    def enough(known: FileFindings) -> bool:
        return not (with_fixes and known.editable)

    found, fixes = list[Finding](), _Fixes()
    for read, made in session.each(work, known=enough):
        here = [f for f in read.findings if options.declined or f.status != "declined"]
        found += here
        fixes |= made or {}
        for finding in here if at_once else ():
            session.out.write(line_of(finding))
    new: Sequence[Finding] | None = found
    if options.baseline:
        new = _without_known(found, options, session)
        if new is None:
            return FAILED
    if options.add_ignore:
        return add_ignores(new or (), session)
    _write(new or (), fixes, options, session, at_once)
    if session.failed:
        return FAILED
    failing = any(f.status != "declined" for f in new or ())
    return FINDINGS if failing and not options.exit_zero else DONE


def _without_known(found: Sequence[Finding], options: Namespace, session: FilesRun) -> Sequence[Finding] | None:
    """The findings that are new; None where the baseline cannot be used."""
    name = visible(options.baseline)
    own = [f for f in found if f.status != "declined"]
    with sentences(session.out) as told:
        if options.write_baseline:
            record(own, options.baseline)
            session.out.say(f"{name}: {plural(len(own), 'finding')} recorded")
            return ()
        result = compared(own, options.baseline)
    if told:
        return None
    if result.known:
        session.out.say(f"{name}: {plural(result.known, 'known finding')} left out")
    if result.gone:
        session.out.say(f"{name}: {plural(result.gone, 'finding')} of it {'is' if result.gone == 1 else 'are'} gone; "
                        "--write-baseline records it anew")  # fmt: skip
    return result.new


def _write(found: Sequence[Finding], fixes: _Fixes, options: Namespace, session: FilesRun, at_once: bool) -> None:
    if options.statistics:
        text = statistics_json(found) if options.format == "json" else statistics_text(found)
        session.out.write([(text, "")])
    elif options.format in FORMATS:
        session.out.write([(FORMATS[options.format](found, fixes), "")])
    else:
        for finding in () if at_once else found:
            session.out.write(line_of(finding))
        if session.read and not options.write_baseline:
            session.out.say(counted(found))
