"""`autofuse check` and `autofuse rewrite`: what is found in files, and what is written into them. Needs no torch."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from autofuse.cli.arguments import STDIN
from autofuse.cli.interruption import interruptible
from autofuse.cli.output import DONE, FAILED, FINDINGS, Output
from autofuse.cli.sentences import sentences
from autofuse.cli.writing import remove_leftovers_beside, written_back, written_once
from autofuse.display.findings import annotation_of, counted, diff_of, line_of, plural
from autofuse.project.config import Configuration
from autofuse.project.file_discovery import Project, SourceFile, Trouble, leads_out
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import Checked, RewriteRun, Rewritten
from autofuse.project.workers import each
from autofuse.results.findings import Finding, as_json
from autofuse.results.visible_text import visible
from autofuse.source.evidence.given_files import ProjectFiles

_Done = TypeVar("_Done")


def check(options: Namespace) -> int:
    """Report what could be fused. Returns 1 where something was found."""
    session = FilesRun(options)
    found: list[Finding] = []
    for checked, _ in session.each(lambda checked, file: None):
        here = [p.finding for p in checked.proposals if options.declined or p.finding.status != "declined"]
        found += here
        for finding in here if options.format != "json" else ():
            session.out.write(line_of(finding) if options.format == "text" else [(annotation_of(finding), "")])
    if options.format == "json":
        session.out.write([(json.dumps(as_json(found), indent=2) + "\n", "")])
    if options.format == "text" and session.read:
        session.out.say(counted(found))
    if session.failed:
        return FAILED
    return FINDINGS if any(f.status != "declined" for f in found) else DONE


def rewrite(options: Namespace) -> int:
    """Write the safe edits into the files, or show them. Returns 1 where --check finds that a file would change."""
    session, dry = FilesRun(options), options.diff or options.check
    changed: list[Rewritten] = []
    left_out = 0

    def rewritten(checked: Checked, file: SourceFile) -> Rewritten | Trouble:
        result = session.run.rewrite(checked, file, options.unsafe)
        return _in_its_place(result, file) if isinstance(result, Rewritten) and result.edits else result

    def prepared(files: list[SourceFile]) -> list[SourceFile]:
        if not (dry or session.from_stdin):
            remove_leftovers_beside(files)
        return written_once(files)

    for checked, result in session.each(rewritten, prepared):
        if isinstance(result, Trouble):
            session.tell(result)
            continue
        for trouble in result.refused:
            session.tell(trouble)
        if options.diff:
            for name, before, after in result.changed():
                session.out.write(diff_of(name, before, after))
        if (dry or written_back(result, session)) and result.edits:
            changed.append(result)
        left_out += 0 if options.unsafe else sum(p.finding.status == "unsafe" for p in checked.proposals)
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


class FilesRun:
    """What `check` and `rewrite` share: the run, where its output goes, and whether something failed."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.out = options, Output()
        self.failed = False
        self.read = 0  # how many files could be read; where there are none, there is nothing to sum up
        permission = RulesPermission(self.out.say, self.out.say, options.allow_rules)
        self.run: RewriteRun = RewriteRun(
            tuple(options.select or ()), tuple(options.ignore or ()), options.target, options.debug, permission,
            generated=options.generated,
        )  # fmt: skip

    def each(
        self,
        work: Callable[[Checked, SourceFile], _Done],
        prepared: Callable[[list[SourceFile]], list[SourceFile]] = list,
    ) -> Iterator[tuple[Checked, _Done]]:
        """Each file that could be read, with what would be done to it, and what `work` makes of that.

        Configurations are settled before the first; then `prepared` says which files it is done to.
        """
        files: list[SourceFile] = []
        with sentences(self.out) as told:
            files = self._files()
            for settings in dict.fromkeys(f.settings for f in files):
                self.run.rules(settings)
            self.run.files = ProjectFiles(tuple(f.path for f in files))
        if told:
            self.failed = True
            return
        files = prepared(files)

        def done(file: SourceFile) -> tuple[Checked, _Done] | Trouble:
            checked = self.run.check_text(sys.stdin.buffer.read(), file) if self.from_stdin else self.run.check(file)
            return checked if isinstance(checked, Trouble) else (checked, work(checked, file))

        with interruptible() as raise_if_lost:
            for result in each(done, files):
                raise_if_lost()
                if isinstance(result, Trouble):
                    self.tell(result)
                else:
                    self.read += 1
                    for trouble in result[0].troubles:
                        self.tell(trouble)
                    yield result

    def _files(self) -> list[SourceFile]:

        project = Project(Configuration(), self.options.force_exclude)
        if self.from_stdin:
            return [project.text(self.options.stdin_filename)]
        if STDIN in self.options.paths:
            self.failed = True
            self.out.say("autofuse: `-` reads standard input and stands alone; name files in a run of their own.")
            return []
        files = []
        for found in project.files(self.options.paths):
            if isinstance(found, Trouble):
                self.tell(found)
            else:
                files.append(found)
        return files

    @property
    def from_stdin(self) -> bool:
        return bool(self.options.paths == [STDIN])

    def tell(self, trouble: Trouble) -> None:
        self.failed |= trouble.error
        self.out.say(trouble.message)
