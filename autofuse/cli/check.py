"""`autofuse check`: reports findings in files, in many formats, except those of a baseline. Works without torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofuse.cli.error_reports import report_errors
from autofuse.cli.files_run import FilesRun
from autofuse.cli.ignores import add_ignores
from autofuse.cli.output import DONE, FAILED, FINDINGS
from autofuse.display.findings import describe_counts, line_of, plural
from autofuse.display.formats import FORMATS, TEXT, statistics_json, statistics_text
from autofuse.project.baseline import compare_with_baseline, write_baseline
from autofuse.project.file_discovery import SourceFile
from autofuse.project.findings_cache import FileFindings
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange
from autofuse.results.visible_text import visible

if TYPE_CHECKING:
    from autofuse.project.run import CheckedFile

_Fixes = dict[Finding, tuple[LineChange, ...]]


def main(options: Namespace) -> int:
    """Reports what could be fused. Returns 1 if there is a finding that is not in the baseline."""
    session = FilesRun(options)
    if options.write_baseline and not options.baseline:
        session.out.say("autofuse: --write-baseline needs a file to write: add --baseline FILE.")
        return FAILED
    with_fixes = options.format == "sarif"
    # Other formats need all findings: a table, one JSON text, a comparison with the baseline.
    writes_at_once = options.format in TEXT and not (options.statistics or options.baseline or options.add_ignore)

    def work(checked: CheckedFile, file: SourceFile) -> _Fixes:
        return session.run.fixes(checked, file) if with_fixes else {}

    def is_enough(cached: FileFindings) -> bool:
        # The cache holds findings and no edits.
        return not (with_fixes and cached.editable)

    findings, fixes = list[Finding](), _Fixes()
    for file_findings, file_fixes in session.process_files(work, is_enough=is_enough):
        file_output = [f for f in file_findings.findings if options.declined or f.status != "declined"]
        findings += file_output
        fixes |= file_fixes or {}
        for finding in file_output if writes_at_once else ():
            session.out.write(line_of(finding))
    reported: Sequence[Finding] | None = findings
    if options.baseline:
        reported = _remove_known(findings, options, session)
        if reported is None:
            return FAILED
    if options.add_ignore:
        return add_ignores(reported or (), session)
    _write_findings(reported or (), fixes, options, session, writes_at_once)
    if session.failed:
        return FAILED
    has_findings = any(f.status != "declined" for f in reported or ())
    return FINDINGS if has_findings and not options.exit_zero else DONE


def _remove_known(findings: Sequence[Finding], options: Namespace, session: FilesRun) -> Sequence[Finding] | None:
    """Returns the findings that are not in the baseline; None if the baseline cannot be used."""
    name = visible(options.baseline)
    not_declined = [f for f in findings if f.status != "declined"]
    with report_errors(session.out) as errors:
        if options.write_baseline:
            write_baseline(not_declined, options.baseline)
            session.out.say(f"{name}: {plural(len(not_declined), 'finding')} recorded")
            return ()
        result = compare_with_baseline(not_declined, options.baseline)
    if errors:
        return None
    if result.known:
        session.out.say(f"{name}: {plural(result.known, 'known finding')} left out")
    if result.gone:
        session.out.say(f"{name}: {plural(result.gone, 'finding')} of it {'is' if result.gone == 1 else 'are'} gone; "
                        "--write-baseline updates it")  # fmt: skip
    return result.new


def _write_findings(
    findings: Sequence[Finding], fixes: _Fixes, options: Namespace, session: FilesRun, at_once: bool
) -> None:
    if options.statistics:
        text = statistics_json(findings) if options.format == "json" else statistics_text(findings)
        session.out.write([(text, "")])
    elif options.format in FORMATS:
        session.out.write([(FORMATS[options.format](findings, fixes), "")])
    else:
        for finding in () if at_once else findings:
            session.out.write(line_of(finding))
        if session.read and not options.write_baseline:
            session.out.say(describe_counts(findings))
