"""A text that somebody is writing: what is found in it, and what can be done about it. For editors.

The files of the project count as in `autofuse check`, as they are on the disk. Knows nothing of editors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autofuse.loading.unknown_code import UnknownCode
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import ConfigError, Configuration
from autofuse.project.file_discovery import Project, SourceFile, Trouble
from autofuse.project.run import RewriteRun
from autofuse.project.suppress import with_ignores
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange, replacements
from autofuse.rule import RuleError
from autofuse.source.evidence.given_files import ProjectFiles


@dataclass(frozen=True)
class TextReading:
    """What was found in one version of a text. `wrong` says why nothing could be read, if so."""

    text: str
    findings: tuple[Finding, ...] = ()
    fixes: dict[Finding, tuple[LineChange, ...]] = field(default_factory=dict)
    all_safe: tuple[LineChange, ...] = ()  # every safe edit together
    rules: tuple[LoadedRule, ...] = ()
    wrong: str = ""

    def on_lines(self, first: int, last: int) -> list[Finding]:
        """The findings that have one of these lines, counted from 1."""
        return [f for f in self.findings if f.line <= last and first <= f.end_line]

    def ignoring(self, finding: Finding) -> tuple[LineChange, ...]:
        """The comment that switches a finding off."""
        wanted = [(finding.code, finding.line, finding.end_line)]
        after, count = with_ignores(self.text.encode(), wanted)
        return replacements(self.text, after.decode()) if count else ()


@dataclass
class OpenFiles:
    """Reads texts as files of the project in `folder`. What is known of other files is forgotten by `forget`."""

    run: RewriteRun
    folder: Path | None = None
    _files: ProjectFiles | None = None

    def forget(self) -> None:
        """Some file was written: the project's files, configurations and rules are looked at anew."""
        self._files = None

    def read(self, path: str, text: str) -> TextReading:
        """What is found in a text that is to be the file at `path`."""
        try:
            file = SourceFile(path, Configuration().of(Path(path).parent), named=False)
            if file.settings.excludes(path):
                return TextReading(text)
            rules = self.run.rules(file.settings)
        except (ConfigError, UnknownCode, RuleError) as error:
            return TextReading(text, wrong=str(error))
        self.run.files = self._project(path)
        checked = self.run.check_text(text.encode(), file)
        if isinstance(checked, Trouble):
            return TextReading(text, rules=rules, wrong=checked.message if checked.error else "")
        made = self.run.rewrite(checked, file)
        together = () if isinstance(made, Trouble) else replacements(text, made.after.decode())
        findings = tuple(p.finding for p in checked.proposals if p.finding.status != "declined")
        return TextReading(text, findings, self.run.fixes(checked, file), together, rules)

    def _project(self, path: str) -> ProjectFiles:
        if self._files is None:
            found = Project(Configuration(), everywhere=True).files([str(self.folder or Path(path).parent)])
            try:
                self._files = ProjectFiles(tuple(f.path for f in found if isinstance(f, SourceFile)))
            except ConfigError:
                self._files = ProjectFiles(())
        return self._files
