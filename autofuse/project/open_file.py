"""Checks a text that is open in an editor: its findings, and the edits that fix them.

The other files of the project are read from the disk, as in `autofuse check`. This module uses no editor protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autofuse.loading.unknown_code import UnknownCode
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import ConfigError, Configuration
from autofuse.project.file_discovery import Problem, Project, SourceFile
from autofuse.project.run import RewriteRun
from autofuse.project.suppress import add_ignore_comments
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange, replacements
from autofuse.rule import RuleError
from autofuse.source.evidence.other_files import ProjectFiles


@dataclass(frozen=True)
class CheckedText:
    """The result of checking one version of a text.

    Attributes:
        text: The text.
        findings: Its findings.
        fixes: The edits of each finding.
        all_safe: All safe edits together.
        rules: The rules that were used.
        error: Why the text could not be checked; "" if it was checked.
    """

    text: str
    findings: tuple[Finding, ...] = ()
    fixes: dict[Finding, tuple[LineChange, ...]] = field(default_factory=dict)
    all_safe: tuple[LineChange, ...] = ()
    rules: tuple[LoadedRule, ...] = ()
    error: str = ""

    def findings_on_lines(self, first: int, last: int) -> list[Finding]:
        """Return the findings on the lines `first` to `last`, counted from 1."""
        return [f for f in self.findings if f.line <= last and first <= f.end_line]

    def ignore_comment_edits(self, finding: Finding) -> tuple[LineChange, ...]:
        """Return the edits that add a comment which switches a finding off."""
        wanted = [(finding.code, finding.line, finding.end_line)]
        after, count = add_ignore_comments(self.text.encode(), wanted)
        return replacements(self.text, after.decode()) if count else ()


@dataclass
class OpenFiles:
    """Checks texts as files of the project in `folder`. `forget` clears what is known of other files."""

    run: RewriteRun
    folder: Path | None = None
    _files: ProjectFiles | None = None

    def forget(self) -> None:
        """Forget all files, configurations and rules. Call this after any file is saved."""
        self._files = None

    def read(self, path: str, text: str) -> CheckedText:
        """Check `text` as the content of the file at `path`."""
        try:
            file = SourceFile(path, Configuration().settings_for(Path(path).parent), named=False)
            if file.settings.excludes(path):
                return CheckedText(text)
            rules = self.run.rules(file.settings)
        except (ConfigError, UnknownCode, RuleError) as error:
            return CheckedText(text, error=str(error))
        self.run.files = self._project(path)
        checked = self.run.check_text(text.encode(), file)
        if isinstance(checked, Problem):
            return CheckedText(text, rules=rules, error=checked.message if checked.error else "")
        rewritten = self.run.rewrite(checked, file)
        all_edits = () if isinstance(rewritten, Problem) else replacements(text, rewritten.after.decode())
        findings = tuple(p.finding for p in checked.proposals if p.finding.status != "declined")
        return CheckedText(text, findings, self.run.fixes(checked, file), all_edits, rules)

    def _project(self, path: str) -> ProjectFiles:
        if self._files is None:
            files = Project(Configuration(), force_exclude=True).files([str(self.folder or Path(path).parent)])
            try:
                self._files = ProjectFiles(tuple(f.path for f in files if isinstance(f, SourceFile)))
            except ConfigError:  # without the other files, the text is checked alone
                self._files = ProjectFiles(())
        return self._files
