"""`autofuse rewrite`: what is written into files. Needs no torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofuse.cli.files_run import FilesRun
from autofuse.cli.output import DONE, FAILED, FINDINGS
from autofuse.cli.writing import remove_leftovers_beside, written_back, written_once
from autofuse.display.findings import diff_of, plural
from autofuse.project.file_discovery import SourceFile, Trouble, leads_out
from autofuse.results.visible_text import visible

if TYPE_CHECKING:
    from autofuse.project.run import Checked, Rewritten


def rewrite(options: Namespace) -> int:
    """Write the safe edits into the files, or show them. Returns 1 where --check finds that a file would change."""
    session, dry = FilesRun(options), options.diff or options.check
    changed: list[Rewritten] = []
    left_out = 0

    def rewritten(checked: Checked, file: SourceFile) -> Rewritten | Trouble:
        result = session.run.rewrite(checked, file, options.unsafe)
        return result if isinstance(result, Trouble) or not result.edits else _in_its_place(result, file)

    def prepared(files: list[SourceFile]) -> list[SourceFile]:
        if not (dry or session.from_stdin):
            remove_leftovers_beside(files)
        return written_once(files)

    for read, result in session.each(rewritten, prepared, lambda found: not found.edits(options.unsafe)):
        if isinstance(result, Trouble):
            session.tell(result)
            continue
        left_out += 0 if options.unsafe else sum(f.status == "unsafe" for f in read.findings)
        if result is None:  # an earlier run knows that there is nothing to edit
            continue
        for trouble in result.refused:
            session.tell(trouble)
        if options.diff:
            for name, before, after in result.changed():
                session.out.write(diff_of(name, before, after))
        if (dry or written_back(result, session)) and result.edits:
            changed.append(result)
    if session.read:
        session.out.say(_told(changed, left_out, dry))
    if session.failed:
        return FAILED
    return FINDINGS if options.check and changed else DONE


def _in_its_place(result: Rewritten, file: SourceFile) -> Rewritten | Trouble:
    """The result, unless a link leads to a file that is not the user's to rewrite here."""
    real = leads_out(file)
    if real is None:
        return result
    return Trouble(
        f"{visible(file.path)}: not rewritten: it leads to {visible(real)}, which is not one of the files in "
        f"{visible(file.tree)}. Name the file itself to have it rewritten.",
        error=False,
    )


def _told(changed: Sequence[Rewritten], left_out: int, conditional: bool) -> str:
    edits = plural(sum(r.edits for r in changed), "edit")
    made = f"{edits} {'to make' if conditional else 'made'} in {plural(len(changed), 'file')}"
    hint = f"; {plural(left_out, 'unsafe edit')} left out (--unsafe includes them)" if left_out else ""
    return (made if changed else "nothing to rewrite") + hint
