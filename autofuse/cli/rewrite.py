"""`autofuse rewrite`: writes edits into files. Works without torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofuse.cli.files_run import FilesRun
from autofuse.cli.output import DONE, FAILED, FINDINGS
from autofuse.cli.writing import drop_repeated_links, remove_leftovers_near, write_result
from autofuse.display.findings import diff_of, plural
from autofuse.project.file_discovery import Problem, SourceFile, outside_target
from autofuse.project.findings_cache import FileFindings
from autofuse.results.visible_text import visible

if TYPE_CHECKING:
    from autofuse.project.run import CheckedFile, RewriteResult


def rewrite(options: Namespace) -> int:
    """Writes the safe edits into the files, or shows them. Returns 1 if --check finds that a file would change."""
    session, dry_run = FilesRun(options), options.diff or options.check
    changed: list[RewriteResult] = []
    skipped = unwritten = 0

    def rewrite_file(checked: CheckedFile, file: SourceFile) -> RewriteResult | Problem:
        result = session.run.rewrite(checked, file, options.unsafe)
        return result if isinstance(result, Problem) or not result.edits else _refuse_outside_link(result, file)

    def prepare(files: list[SourceFile]) -> list[SourceFile]:
        if not (dry_run or session.from_stdin):  # a run that writes nothing also deletes nothing
            remove_leftovers_near(files)
        return drop_repeated_links(files)

    def has_no_edits(cached: FileFindings) -> bool:
        return not cached.edits(options.unsafe)

    for file_findings, result in session.process_files(rewrite_file, prepare, has_no_edits):
        if isinstance(result, Problem):
            session.report(result)
            continue
        skipped += 0 if options.unsafe else sum(f.status == "unsafe" for f in file_findings.findings)
        if result is None:  # the cache says that there is nothing to edit
            continue
        for problem in result.refused:
            session.report(problem)
        if options.diff:
            for name, before, after in result.changed():
                session.out.write(diff_of(name, before, after))
        if (dry_run or write_result(result, session)) and result.edits:
            changed.append(result)
        elif result.edits:
            unwritten += 1
    if session.read:
        session.out.say(_summarize(changed, skipped, unwritten, dry_run))
    if session.failed:
        return FAILED
    return FINDINGS if options.check and changed else DONE


def _refuse_outside_link(result: RewriteResult, file: SourceFile) -> RewriteResult | Problem:
    """Returns the result, or a problem if the path is a link to a file outside of the folder that is rewritten."""
    real = outside_target(file)
    if real is None:
        return result
    return Problem(
        f"{visible(file.path)}: not rewritten: it is a link to {visible(real)}, which is not one of the files in "
        f"{visible(file.tree)}. Name that file itself to rewrite it.",
        error=False,
    )


def _summarize(changed: Sequence[RewriteResult], skipped: int, unwritten: int, dry_run: bool) -> str:
    edits = plural(sum(r.edits for r in changed), "edit")
    summary = f"{edits} {'to make' if dry_run else 'made'} in {plural(len(changed), 'file')}"
    hint = f"; {plural(skipped, 'unsafe edit')} left out (--unsafe includes them)" if skipped else ""
    if unwritten:
        return f"{summary}; {plural(unwritten, 'file')} with edits could not be written" + hint
    return (summary if changed else "nothing to rewrite") + hint
