"""One run over files: read, check, leave out what is switched off, rewrite.

What stands in the way of one file becomes a Trouble and never stops the others. Prints nothing, and writes no file.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autofuse.match import LoadedRule
from autofuse.registry import load_rules
from autofuse.selection import require_known, selected
from autofuse.source.check import Proposal, proposals
from autofuse.source.config import Settings
from autofuse.source.project import SourceFile, Trouble
from autofuse.source.suppress import suppressions
from autofuse.source.write import CannotWrite, applied

_ROUNDS = 4  # one rewrite may make room for another, such as the MLP around a GELU


@dataclass(frozen=True)
class Checked:
    """One file as it was read, and what would be done to it."""

    path: str
    source: bytes
    proposals: tuple[Proposal, ...]


@dataclass(frozen=True)
class Rewritten:
    """One file before and after, how many edits lie between, and why some could not be made."""

    path: str
    before: bytes
    after: bytes
    edits: int
    refused: tuple[Trouble, ...] = ()


@dataclass
class Run:
    """`select` and `target` replace what the configuration says; `ignore` adds to what it ignores."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: str | None = None
    debug: bool = False  # internal errors come with their traceback
    _rules: dict[Settings, tuple[LoadedRule, ...]] = field(default_factory=dict)

    def rules(self, settings: Settings) -> tuple[LoadedRule, ...]:
        """The rules that hold under some settings. Raises UnknownCode, and RuleError where a rule is malformed."""
        if settings not in self._rules:
            every = load_rules(settings.rules) if settings.rules else load_rules()
            for prefix in (c for _, codes in settings.per_file_ignores for c in codes):
                require_known(prefix, every)
            self._rules[settings] = selected(every, self.select or settings.select, (*settings.ignore, *self.ignore))
        return self._rules[settings]

    def check(self, file: SourceFile) -> Checked | Trouble:
        """What would be done to one file."""
        try:
            with open(file.path, "rb") as opened:
                source = opened.read()
        except OSError as error:
            return Trouble(f"{file.path}: cannot be read: {error.strerror or error}.")
        return self.check_text(source, file)

    def check_text(self, source: bytes, file: SourceFile) -> Checked | Trouble:
        """What would be done to a text that goes by the name of `file`."""
        if b"torch" not in source and not file.named:  # most files of a tree: nothing in them can be fused
            return Checked(file.path, source, ())
        try:
            return Checked(file.path, source, self._proposals(source, file))
        except SyntaxError as error:
            return Trouble(f"{file.path}:{error.lineno or 1}: not read: {error.msg}.")
        except (RecursionError, MemoryError):
            return Trouble(f"{file.path}: not read: its expressions are nested too deeply to follow.")
        except Exception as error:
            if isinstance(error, ValueError) and b"\0" in source:
                return Trouble(f"{file.path}: not read: it holds null bytes, so it is not Python source.")
            return self._internal(file.path, error)

    def rewrite(self, checked: Checked, file: SourceFile, unsafe: bool = False) -> Rewritten | Trouble:
        """The text with every wanted edit made, repeated until none is left."""
        try:
            return self._settled(checked, file, unsafe)
        except Exception as error:  # a SyntaxError too: the text was sound before we touched it
            return self._internal(file.path, error)

    def _proposals(self, source: bytes, file: SourceFile) -> tuple[Proposal, ...]:
        if b"torch" not in source:
            ast.parse(source)  # a named file is read to the end, so that a syntax error in it is told
            return ()
        found = proposals(
            source, file.path, rules=self.rules(file.settings), target=self.target or file.settings.target
        )
        if not found:
            return ()
        silent, ignored = suppressions(source), file.settings.ignored_in(file.path)
        kept = (p for p in found if not p.finding.code.startswith(ignored))
        return tuple(p for p in kept if not silent.cover(p.finding.code, p.finding.line, p.finding.end_line))

    def _settled(self, checked: Checked, file: SourceFile, unsafe: bool) -> Rewritten:
        source, edits, refused = checked.source, 0, tuple[Trouble, ...]()
        wanted = _wanted(checked.proposals, unsafe)
        for _ in range(_ROUNDS):
            if not wanted:
                break
            made = _made(source, wanted, file.path)
            edits, source, refused = edits + made.edits, made.after, made.refused
            wanted = _wanted(self._proposals(source, file), unsafe) if made.edits else []
        return Rewritten(file.path, checked.source, source, edits, refused)

    def _internal(self, path: str, error: Exception) -> Trouble:
        detail = "\n" + "".join(traceback.format_exception(error)) if self.debug else ""
        return Trouble(f"internal error on {path}: {type(error).__name__}: {error}; please report it.{detail}")


def _made(source: bytes, wanted: list[Proposal], path: str) -> Rewritten:
    """The text with all edits that can be made together, for one that cannot must not hold up the rest."""
    try:
        return Rewritten(path, source, applied(source, wanted), len(wanted))
    except CannotWrite:
        pass
    after, made, refused = source, list[Proposal](), list[Trouble]()
    for proposal in wanted:
        try:
            after = applied(source, [*made, proposal])
            made.append(proposal)
        except CannotWrite as reason:
            place = f"{path}:{proposal.finding.line}"
            refused.append(Trouble(f"{place}: {proposal.finding.code} not rewritten: {reason}."))
    return Rewritten(path, source, after, len(made), tuple(refused))


def rewritten(text: str, rules: Sequence[LoadedRule]) -> str:
    """A text with every edit of `rules` made, safe or not."""
    wanted = _wanted(proposals(text.encode(), "", rules=rules), unsafe=True)
    return applied(text.encode(), wanted).decode() if wanted else text


def _wanted(found: Iterable[Proposal], unsafe: bool) -> list[Proposal]:
    statuses = ("safe", "unsafe") if unsafe else ("safe",)
    wanted = [p for p in found if p.edit is not None and p.finding.status in statuses]
    made = {p.finding for p in wanted}
    return [p for p in wanted if made.isdisjoint(p.within)]
