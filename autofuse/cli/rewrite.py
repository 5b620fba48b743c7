"""`autofuse check` and `autofuse rewrite`: what is found in files, and what is written into them. Needs no torch."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from autofuse.cli.arguments import STDIN
from autofuse.cli.output import DONE, FAILED, FINDINGS, Output
from autofuse.cli.sentences import sentences
from autofuse.display.findings import annotation_of, counted, diff_of, line_of, plural
from autofuse.project.config import Configuration
from autofuse.project.file_discovery import Project, SourceFile, Trouble
from autofuse.project.run import Checked, RewriteRun, Rewritten
from autofuse.project.workers import each
from autofuse.results.atomic_files import replace
from autofuse.results.findings import Finding, as_json
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
    for checked, result in session.each(lambda checked, file: session.run.rewrite(checked, file, options.unsafe)):
        if isinstance(result, Trouble):
            session.tell(result)
            continue
        for trouble in result.refused:
            session.tell(trouble)
        if options.diff:
            for name, before, after in result.changed():
                session.out.write(diff_of(name, before, after))
        if (dry or session.write_back(result)) and result.edits:
            changed.append(result)
        left_out += 0 if options.unsafe else sum(p.finding.status == "unsafe" for p in checked.proposals)
    if session.read:
        session.out.say(_told(changed, left_out, dry))
    if session.failed:
        return FAILED
    return FINDINGS if options.check and changed else DONE


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
        self.run: RewriteRun = RewriteRun(
            tuple(options.select or ()), tuple(options.ignore or ()), options.target, options.debug
        )

    def each(self, work: Callable[[Checked, SourceFile], _Done]) -> Iterator[tuple[Checked, _Done]]:
        """Each file that could be read, with what would be done to it, and what `work` makes of that.

        Configurations are settled before the first.
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

        def done(file: SourceFile) -> tuple[Checked, _Done] | Trouble:
            checked = self.run.check_text(sys.stdin.buffer.read(), file) if self.from_stdin else self.run.check(file)
            return checked if isinstance(checked, Trouble) else (checked, work(checked, file))

        for result in each(done, files):
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

    def write_back(self, result: Rewritten) -> bool:
        """Puts a rewritten text where it belongs, and says so; whether that went well."""
        if self.from_stdin:
            sys.stdout.flush()
            sys.stdout.buffer.write(result.after)
            sys.stdout.buffer.flush()
            return True
        if not result.edits:
            return True
        try:
            replace(result.path, result.after)
        except OSError as error:
            self.failed = True
            self.out.say(f"{result.path}: cannot be written: {error.strerror or error}.")
            return False
        self.out.write([(f"{result.path}: ", "bold"), (plural(result.edits, "edit") + "\n", "")])
        return True

    def tell(self, trouble: Trouble) -> None:
        self.failed |= trouble.error
        self.out.say(trouble.message)
