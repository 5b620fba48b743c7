"""One run over files: read, check, leave out what is switched off, rewrite.

What stands in the way of one file becomes a Trouble and never stops the others. Prints nothing, and writes no file.
"""

from __future__ import annotations

import ast
import io
import logging
import tokenize
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autofuse.loading.selection import UNLESS_SELECTED, require_known, selected
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import FileSettings
from autofuse.project.document import Document, document
from autofuse.project.file_discovery import SourceFile, Trouble, not_python
from autofuse.project.notebook import NotANotebook
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.suppress import suppressions
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange, replacements
from autofuse.results.regular_files import read
from autofuse.results.visible_text import visible
from autofuse.rule import RuleError
from autofuse.source.evidence.given_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.find.proposal import Proposal
from autofuse.source.find.unread import UnreadFunction
from autofuse.source.write.file_edits import CannotWrite, applied

_LOG = logging.getLogger("autofuse")
_ROUNDS = 50  # one rewrite may make room for another, such as the MLP around a GELU; no file needs so many


@dataclass(frozen=True)
class Checked:
    """One file as it was read, what would be done to it, and which parts of it could not be read."""

    path: str
    source: bytes
    proposals: tuple[Proposal, ...]
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True)
class Rewritten:
    """One file before and after, how many edits lie between, and why some could not be made."""

    path: str
    before: bytes
    after: bytes
    edits: int
    refused: tuple[Trouble, ...] = ()

    def changed(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Each text of the file that changed, before and after, by its name: a notebook has one for each cell."""
        before, after = (document(source, self.path).texts() for source in (self.before, self.after))
        return ((name, text, after[name]) for name, text in before.items() if text != after[name])


@dataclass
class RewriteRun:
    """`select` and `target` replace what the configuration says; `ignore` adds to what it ignores."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: str | None = None
    debug: bool = False  # internal errors come with their traceback
    permission: RulesPermission = field(default_factory=lambda: RulesPermission(_LOG.info, _LOG.warning))
    files: ProjectFiles | None = None  # of the project, where they are given: they may show that other code runs
    generated: bool = False  # files that a generator made are edited too
    _rules: dict[FileSettings, tuple[LoadedRule, ...]] = field(default_factory=dict)

    def rules(self, settings: FileSettings) -> tuple[LoadedRule, ...]:
        """The rules that hold under some settings. Raises UnknownCode, and RuleError where a rule is malformed."""
        if settings not in self._rules:
            every = self.permission.rules(settings)
            if not self.permission.allows(settings):
                self._rules[settings] = self._without_own(settings, every)
                return self._rules[settings]
            for prefix in (c for _, codes in settings.per_file_ignores for c in codes):
                require_known(prefix, every)
            wanted = self.select or settings.select
            unasked = () if wanted else tuple(c for c in UNLESS_SELECTED if any(r.rule.code == c for r in every))
            self._rules[settings] = selected(every, wanted, (*settings.ignore, *self.ignore, *unasked))
        return self._rules[settings]

    def _without_own(self, settings: FileSettings, every: tuple[LoadedRule, ...]) -> tuple[LoadedRule, ...]:
        """What a configuration selects whose own rules are not executed: their codes are then those of no rule."""

        def known(codes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(c for c in codes if any(r.rule.code.startswith(c) for r in every))

        wanted = self.select or known(settings.select)
        unasked = () if wanted else known(UNLESS_SELECTED)
        if settings.select and not wanted:
            return ()
        return selected(every, wanted, (*known(settings.ignore), *self.ignore, *unasked))

    def check(self, file: SourceFile) -> Checked | Trouble:
        """What would be done to one file."""
        try:
            source = read(file.path)
        except OSError as error:
            return Trouble(f"{visible(file.path)}: cannot be read: {error.strerror or error}.")
        return self.check_text(source, file)

    def check_text(self, source: bytes, file: SourceFile) -> Checked | Trouble:
        """What would be done to a text that goes by the name of `file`."""
        if b"torch" not in source and not file.named:  # most files of a tree: nothing in them can be fused
            return Checked(file.path, source, ())
        try:
            return self._checked(source, file)
        except NotANotebook as error:
            return Trouble(f"{visible(file.path)}: not read: {error}.")
        except SyntaxError as error:
            return not_python(f"{visible(file.path)}:{error.lineno or 1}", error)
        except (RecursionError, MemoryError):
            return Trouble(f"{visible(file.path)}: not read: its expressions are nested too deeply to follow.")
        except RuleError as error:
            return Trouble(f"{visible(file.path)}: {error}")
        except Exception as error:
            if isinstance(error, ValueError) and b"\0" in source:
                return Trouble(f"{visible(file.path)}: not read: it holds null bytes, so it is not Python source.")
            return self._internal(file.path, error)

    def rewrite(self, checked: Checked, file: SourceFile, unsafe: bool = False) -> Rewritten | Trouble:
        """The text with every wanted edit made, repeated until none is left."""
        try:
            return self._settled(checked, file, unsafe)
        except RuleError as error:
            return Trouble(f"{visible(file.path)}: {error}")
        except Exception as error:  # a SyntaxError too: the text was sound before we touched it
            return self._internal(file.path, error)

    def _checked(self, source: bytes, file: SourceFile, only: frozenset[str] | None = None) -> Checked:
        read = document(source, file.path)
        if b"torch" not in source:
            ast.parse(read.program)  # a named file is read to the end, so that a syntax error in it is told
            return Checked(file.path, source, (), read.troubles)
        target, unread = self.target or file.settings.target, list[UnreadFunction]()
        rules = self.rules(file.settings)
        found = proposals(
            read.program, file.path, rules=rules, target=target, unread=unread, only=only, files=self.files,
            generated=self.generated,
        )  # fmt: skip
        kept = tuple(_located(p, read) for p in _heard(found, read.program, file))
        stale = [] if unread or only is not None else self._stale(found, read, file, [r.rule.code for r in rules])
        return Checked(file.path, source, kept, (*read.troubles, *(self._told(u, read) for u in unread), *stale))

    def _stale(self, found: Sequence[Proposal], read: Document, file: SourceFile, active: list[str]) -> list[Trouble]:
        """A remark for each comment that switches nothing off."""
        silent = suppressions(read.program)
        if not silent.by_line and not silent.everywhere:
            return []
        every = [r.rule.code for r in self.permission.rules(file.settings)]
        looked_for = [c for c in active if not c.startswith(file.settings.ignored_in(file.path))]
        heard = [(p.finding.code, p.finding.line, p.finding.end_line) for p in found]
        return [
            Trouble(
                f"{read.place(line)}: `# autofuse: ignore{f'[{code}]' if code else ''}` switches nothing off.", False
            )
            for line, code in silent.stale(heard, looked_for, every)
        ]

    def fixes(self, checked: Checked, file: SourceFile) -> dict[Finding, tuple[LineChange, ...]]:
        """What each edit does to the file by itself; nothing for a notebook, whose lines are those of its cells."""
        try:
            read = document(checked.source, file.path)
            before = _text(checked.source)
        except (NotANotebook, SyntaxError, UnicodeError):
            return {}
        if read.texts().keys() != {file.path}:
            return {}
        found: dict[Finding, tuple[LineChange, ...]] = {}
        for p in checked.proposals:
            if p.edit is not None:
                made = self._made(read, checked.source, [p], file.path, p.finding.status != "unsafe")
                if made.edits:
                    found[p.finding] = replacements(before, _text(made.after))
        return found

    def _settled(self, checked: Checked, file: SourceFile, unsafe: bool) -> Rewritten:
        source, edits, refused = checked.source, 0, tuple[Trouble, ...]()
        wanted = _wanted(checked.proposals, unsafe)
        for _ in range(_ROUNDS):
            if not wanted:
                break
            made = self._made(document(source, file.path), source, wanted, file.path, not unsafe)
            edits, source, refused = edits + made.edits, made.after, made.refused
            touched = None if any(map(_makes_room, wanted)) else frozenset(p.finding.symbol for p in wanted)
            wanted = _wanted(self._checked(source, file, touched).proposals, unsafe) if made.edits else []
        return Rewritten(file.path, checked.source, source, edits, refused)

    def _made(self, read: Document, source: bytes, wanted: list[Proposal], path: str, comments: bool) -> Rewritten:
        """The text with all edits that can be made together, for one that cannot must not hold up the rest."""
        after, made, refused = source, list[Proposal](), list[Trouble]()
        groups = [wanted]
        while groups:
            group = groups.pop()
            try:
                after = read.with_edits([p.edit for p in (*made, *group) if p.edit], comments)
                made += group
            except CannotWrite as reason:
                if len(group) == 1:
                    refused.append(
                        Trouble(f"{group[0].finding.place}: {group[0].finding.code} not rewritten: {reason}.")
                    )
                else:
                    groups += _halves(group)
            except Exception as error:  # ours: it costs the edits that cannot be made without it
                if len(group) == 1:
                    place = f"{group[0].finding.place}, which leaves {group[0].finding.code} undone"
                    refused.append(self._internal(place, error))
                else:
                    groups += _halves(group)
        return Rewritten(path, source, after, len(made), tuple(refused))

    def _told(self, unread: UnreadFunction, read: Document) -> Trouble:
        if unread.error is not None:
            return self._internal(f"{read.place(unread.line)}, which leaves {unread.symbol} unread", unread.error)
        return Trouble(f"{read.place(unread.line)}: {unread.symbol} is not read: {unread.why}.", error=False)

    def _internal(self, path: str, error: Exception) -> Trouble:
        detail = "\n" + "".join(traceback.format_exception(error)) if self.debug else ""
        return Trouble(f"internal error on {visible(path)}: {type(error).__name__}: {error}; please report it.{detail}")


def _heard(found: Sequence[Proposal], program: bytes, file: SourceFile) -> Iterator[Proposal]:
    """The proposals that neither a comment nor the configuration switches off."""
    if not found:
        return
    silent, ignored = suppressions(program), file.settings.ignored_in(file.path)
    for p in found:
        off = p.finding.code.startswith(ignored)
        if not off and not silent.cover(p.finding.code, p.finding.line, p.finding.end_line):
            yield p


def _located(p: Proposal, read: Document) -> Proposal:
    return replace(p, finding=read.located(p.finding), within=tuple(map(read.located, p.within)))


def _text(source: bytes) -> str:
    """A file's text as an editor has it."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _halves(group: list[Proposal]) -> list[list[Proposal]]:
    """The later half first, so that the earlier one is taken next."""
    half = len(group) // 2
    return [group[half:], group[:half]]


def rewritten(text: str, rules: Sequence[LoadedRule]) -> str:
    """A text with every edit of `rules` made, safe or not."""
    wanted = _wanted(proposals(text.encode(), "", rules=rules), unsafe=True)
    return applied(text.encode(), wanted).decode() if wanted else text


def _makes_room(p: Proposal) -> bool:
    """Whether an edit may make room for another elsewhere: a norm or activation of the file's own may be read there."""
    return p.finding.code.startswith(("AF102", "AF2", "AF3")) or not p.finding.code.startswith("AF")


def _wanted(found: Iterable[Proposal], unsafe: bool) -> list[Proposal]:
    statuses = ("safe", "unsafe") if unsafe else ("safe",)
    wanted = [p for p in found if p.edit is not None and p.finding.status in statuses]
    made = {p.finding for p in wanted}
    return [p for p in wanted if made.isdisjoint(p.within)]
