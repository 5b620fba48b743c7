"""Checks and rewrites files: reads a file, finds proposals, removes those that are switched off, applies edits.

A failure in one file becomes a Problem and does not stop the run. This module prints nothing and writes no file.
"""

from __future__ import annotations

import ast
import io
import logging
import tokenize
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autofuse.loading.selection import OFF_BY_DEFAULT, require_known, select_rules
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import FileSettings
from autofuse.project.document import Document, read_document
from autofuse.project.file_discovery import Problem, SourceFile, syntax_problem
from autofuse.project.notebook import NotANotebook
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.suppress import read_suppressions
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange, replacements
from autofuse.results.regular_files import read
from autofuse.results.visible_text import visible
from autofuse.rule import RuleError
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.find.file_reader import SkippedFunction
from autofuse.source.find.proposal import Proposal
from autofuse.source.find.unwanted_edits import generator_of
from autofuse.source.write.file_edits import CannotWrite, apply_proposals

_LOG = logging.getLogger("autofuse")
_ROUNDS = 50  # an upper bound: one edit can enable another, such as a fused GELU that enables a fused MLP


@dataclass(frozen=True)
class CheckedFile:
    """One checked file.

    Attributes:
        path: The path of the file.
        source: Its content.
        proposals: The findings and their edits.
        problems: The parts of the file that could not be read, and remarks.
    """

    path: str
    source: bytes
    proposals: tuple[Proposal, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class RewriteResult:
    """One rewritten file.

    Attributes:
        path: The path of the file.
        before: The old content.
        after: The new content.
        edits: The number of edits.
        refused: The edits that could not be applied, with the reason.
    """

    path: str
    before: bytes
    after: bytes
    edits: int
    refused: tuple[Problem, ...] = ()

    def changed(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the name, the old text and the new text of each changed part. Each cell of a notebook is a part."""
        before, after = (read_document(source, self.path).texts() for source in (self.before, self.after))
        return ((name, text, after[name]) for name, text in before.items() if text != after[name])


@dataclass
class RewriteRun:
    """The settings of a run, and its methods for one file.

    Attributes:
        select: Prefixes of codes. They replace `select` of the configuration.
        ignore: Prefixes of codes. They are added to `ignore` of the configuration.
        target: The target. It replaces `target` of the configuration.
        debug: Whether messages about internal errors include the traceback.
        permission: Decides which rules of users are executed.
        files: The files of the project. They can show that other code than the visible code runs.
        generated: Whether files that a generator wrote are edited, too.
        declined: Whether declined findings are wanted. Without them, less is read.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: str | None = None
    debug: bool = False
    permission: RulesPermission = field(default_factory=lambda: RulesPermission(_LOG.info, _LOG.warning))
    files: ProjectFiles | None = None
    generated: bool = False
    declined: bool = True
    _rules: dict[FileSettings, tuple[LoadedRule, ...]] = field(default_factory=dict)

    def rules(self, settings: FileSettings) -> tuple[LoadedRule, ...]:
        """Return the rules that `settings` select.

        Raises:
            UnknownCode: A selected or ignored code belongs to no rule.
            RuleError: A rule is not valid.
        """
        if settings not in self._rules:
            all_rules = self.permission.rules(settings)
            if not self.permission.allows(settings):
                self._rules[settings] = self._select_without_user_rules(settings, all_rules)
                return self._rules[settings]
            for prefix in (c for _, codes in settings.per_file_ignores for c in codes):
                require_known(prefix, all_rules)
            wanted = self.select or settings.select
            off_by_default = (
                () if wanted else tuple(c for c in OFF_BY_DEFAULT if any(r.rule.code == c for r in all_rules))
            )
            self._rules[settings] = select_rules(all_rules, wanted, (*settings.ignore, *self.ignore, *off_by_default))
        return self._rules[settings]

    def _select_without_user_rules(
        self, settings: FileSettings, all_rules: tuple[LoadedRule, ...]
    ) -> tuple[LoadedRule, ...]:
        """Return the selected rules if the configuration's own rules must not be executed.

        The codes of these rules are not known, so codes without a rule are ignored instead of reported.
        """

        def codes_with_rules(codes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(c for c in codes if any(r.rule.code.startswith(c) for r in all_rules))

        wanted = self.select or codes_with_rules(settings.select)
        off_by_default = () if wanted else codes_with_rules(OFF_BY_DEFAULT)
        if settings.select and not wanted:
            return ()
        return select_rules(all_rules, wanted, (*codes_with_rules(settings.ignore), *self.ignore, *off_by_default))

    def check(self, file: SourceFile) -> CheckedFile | Problem:
        """Check one file."""
        try:
            source = read(file.path)
        except OSError as error:
            return Problem(f"{visible(file.path)}: cannot be read: {error.strerror or error}.")
        return self.check_text(source, file)

    def check_text(self, source: bytes, file: SourceFile) -> CheckedFile | Problem:
        """Check `source` as the content of `file`."""
        if b"torch" not in source and not file.named:  # most files of a project: nothing in them can be fused
            return CheckedFile(file.path, source, ())
        try:
            return self._check_document(source, file)
        except NotANotebook as error:
            return Problem(f"{visible(file.path)}: not read: {error}.")
        except SyntaxError as error:
            return syntax_problem(f"{visible(file.path)}:{error.lineno or 1}", error)
        except (RecursionError, MemoryError):
            return Problem(f"{visible(file.path)}: not read: its expressions are nested too deeply to follow.")
        except RuleError as error:
            return Problem(f"{visible(file.path)}: {error}")
        except Exception as error:
            if isinstance(error, ValueError) and b"\0" in source:
                return Problem(f"{visible(file.path)}: not read: it contains null bytes, so it is not Python source.")
            return self._internal_error(file.path, error)

    def rewrite(self, checked: CheckedFile, file: SourceFile, unsafe: bool = False) -> RewriteResult | Problem:
        """Apply all edits of a checked file, and check the result again until no edit is left.

        Args:
            checked: The result of `check`.
            file: The file.
            unsafe: Whether to apply unsafe edits, too.
        """
        try:
            return self._rewrite_until_stable(checked, file, unsafe)
        except RuleError as error:
            return Problem(f"{visible(file.path)}: {error}")
        except Exception as error:  # including SyntaxError: the text was valid before the edits
            return self._internal_error(file.path, error)

    def _check_document(self, source: bytes, file: SourceFile, only: frozenset[str] | None = None) -> CheckedFile:
        """Check a text.

        Args:
            source: The text.
            file: The file that it belongs to.
            only: The symbols of the functions to check; None for all functions.

        Raises:
            NotANotebook: The file is a malformed notebook.
            SyntaxError: The text is not Python.
        """
        document = read_document(source, file.path)
        if b"torch" not in source:
            ast.parse(document.program)  # a file that the user named is parsed, so that a syntax error is reported
            return CheckedFile(file.path, source, (), document.problems)
        target, unread = self.target or file.settings.target, list[SkippedFunction]()
        rules = self.rules(file.settings)
        all_proposals = proposals(
            document.program, file.path, rules=rules, target=target, skipped=unread, only=only, files=self.files,
            generated=self.generated, declined=self.declined, always_parse=file.named,
        )  # fmt: skip
        reported = tuple(_locate(p, document) for p in _without_suppressed(all_proposals, document.program, file))
        # A comment may belong to a function that is not read or not checked, so then none is reported as unused.
        left_out = not self.declined and not self.generated and generator_of(document.program)
        partial = unread or only is not None or left_out
        active = [r.rule.code for r in rules]
        unused = [] if partial else self._find_unused_comments(all_proposals, document, file, active)
        problems = (*document.problems, *(self._report_unread(u, document) for u in unread), *unused)
        return CheckedFile(file.path, source, reported, problems)

    def _find_unused_comments(
        self, all_proposals: Sequence[Proposal], document: Document, file: SourceFile, active: list[str]
    ) -> list[Problem]:
        """Return a remark for each comment that switches nothing off."""
        suppressions = read_suppressions(document.program)
        if not suppressions.by_line and not suppressions.whole_file_codes:
            return []
        all_codes = [r.rule.code for r in self.permission.rules(file.settings)]
        checked_codes = [c for c in active if not c.startswith(file.settings.ignored_in(file.path))]
        findings = [(p.finding.code, p.finding.line, p.finding.end_line) for p in all_proposals]
        return [
            Problem(
                f"{document.place(line)}: `# autofuse: ignore{f'[{code}]' if code else ''}` switches nothing off.",
                False,
            )
            for line, code in suppressions.find_unused(findings, checked_codes, all_codes)
        ]

    def fixes(self, checked: CheckedFile, file: SourceFile) -> dict[Finding, tuple[LineChange, ...]]:
        """Return the line changes of each single edit. Notebooks have no fixes."""
        try:
            document = read_document(checked.source, file.path)
            before = _decode(checked.source)
        except (NotANotebook, SyntaxError, UnicodeError):
            return {}
        if document.texts().keys() != {file.path}:
            return {}
        changes: dict[Finding, tuple[LineChange, ...]] = {}
        for p in checked.proposals:
            if p.edit is not None:
                result = self._apply_edits(document, checked.source, [p], file.path, p.finding.status != "unsafe")
                if result.edits:
                    changes[p.finding] = replacements(before, _decode(result.after))
        return changes

    def _rewrite_until_stable(self, checked: CheckedFile, file: SourceFile, unsafe: bool) -> RewriteResult:
        source, edits, refused = checked.source, 0, tuple[Problem, ...]()
        wanted = _wanted_proposals(checked.proposals, unsafe)
        for _ in range(_ROUNDS):
            if not wanted:
                break
            result = self._apply_edits(read_document(source, file.path), source, wanted, file.path, not unsafe)
            edits, source, refused = edits + result.edits, result.after, result.refused
            touched = None if any(map(_may_enable_others, wanted)) else frozenset(p.finding.symbol for p in wanted)
            wanted = (
                _wanted_proposals(self._check_document(source, file, touched).proposals, unsafe) if result.edits else []
            )
        return RewriteResult(file.path, checked.source, source, edits, refused)

    def _apply_edits(
        self, document: Document, source: bytes, wanted: list[Proposal], path: str, comments: bool
    ) -> RewriteResult:
        """Apply all edits that are possible together.

        If a group of edits fails, each half of it is tried separately. So one failing edit does not block the others.
        """
        after, applied_edits, refused = source, list[Proposal](), list[Problem]()
        queue = [wanted]
        while queue:
            group = queue.pop()
            try:
                after = document.with_edits([p.edit for p in (*applied_edits, *group) if p.edit], comments)
                applied_edits += group
            except CannotWrite as reason:
                if len(group) == 1:
                    refused.append(
                        Problem(f"{group[0].finding.place}: {group[0].finding.code} not rewritten: {reason}.")
                    )
                else:
                    queue += _split_in_half(group)
            except Exception as error:  # an internal error: only the edits that cause it are left out
                if len(group) == 1:
                    place = f"{group[0].finding.place}, so {group[0].finding.code} is not rewritten"
                    refused.append(self._internal_error(place, error))
                else:
                    queue += _split_in_half(group)
        return RewriteResult(path, source, after, len(applied_edits), tuple(refused))

    def _report_unread(self, unread: SkippedFunction, document: Document) -> Problem:
        if unread.error is not None:
            return self._internal_error(f"{document.place(unread.line)}, so {unread.symbol} is not read", unread.error)
        which = f"{unread.symbol} is not read"
        if unread.others:
            others = f"{unread.others:,} {'function' if unread.others == 1 else 'functions'}"
            which = f"{unread.symbol} and {others} after it, up to {unread.last}, are not read"
        return Problem(f"{document.place(unread.line)}: {which}: {unread.why}.", error=False)

    def _internal_error(self, path: str, error: Exception) -> Problem:
        detail = "\n" + "".join(traceback.format_exception(error)) if self.debug else ""
        return Problem(f"internal error on {visible(path)}: {type(error).__name__}: {error}; please report it.{detail}")


def _without_suppressed(all_proposals: Sequence[Proposal], program: bytes, file: SourceFile) -> Iterator[Proposal]:
    """Yield the proposals that neither a comment nor the configuration switches off."""
    if not all_proposals:
        return
    suppressions, ignored = read_suppressions(program), file.settings.ignored_in(file.path)
    for p in all_proposals:
        off = p.finding.code.startswith(ignored)
        if not off and not suppressions.covers(p.finding.code, p.finding.line, p.finding.end_line):
            yield p


def _locate(p: Proposal, document: Document) -> Proposal:
    """Return a proposal with the lines that it has in the file."""
    return replace(p, finding=document.locate(p.finding), waits_for=tuple(map(document.locate, p.waits_for)))


def _decode(source: bytes) -> str:
    """Return the text of a file as an editor shows it."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _split_in_half(group: list[Proposal]) -> list[list[Proposal]]:
    """Return both halves. The first half is last, because the caller continues with the last group."""
    half = len(group) // 2
    return [group[half:], group[:half]]


def rewrite_text(text: str, rules: Sequence[LoadedRule]) -> str:
    """Return a text with every edit of `rules`, safe or unsafe."""
    wanted = _wanted_proposals(proposals(text.encode(), "", rules=rules), unsafe=True)
    return apply_proposals(text.encode(), wanted).decode() if wanted else text


def _may_enable_others(p: Proposal) -> bool:
    """Whether an edit in one function can enable an edit in another.

    This is possible if the first function is a norm or an activation, because callers of it include its code.
    """
    return p.finding.code.startswith(("AF102", "AF2", "AF3")) or not p.finding.code.startswith("AF")


def _wanted_proposals(all_proposals: Iterable[Proposal], unsafe: bool) -> list[Proposal]:
    """Return the proposals to apply. A proposal inside the code of another wanted proposal is left out."""
    statuses = ("safe", "unsafe") if unsafe else ("safe",)
    wanted = [p for p in all_proposals if p.edit is not None and p.finding.status in statuses]
    findings = {p.finding for p in wanted}
    return [p for p in wanted if findings.isdisjoint(p.waits_for)]
