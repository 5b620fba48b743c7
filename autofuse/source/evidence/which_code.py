"""Which code will run? What an edit reads through is what the given files say, for every instance they show.

Where a subclass overrides a helper, a child or an attribute, or something assigns, patches or hooks it from outside,
the function is read again as it is then. If the same edit comes out, and is as safe, it does not rest on that;
otherwise the files show that other code runs, and the edit is declined.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.evidence.changes import CodeChange, changes_in
from autofuse.source.evidence.child_changes import CODE_AND_SETTINGS, changed_children, may_change_children
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.families import (
    Subclass,
    assigned_later,
    defines,
    lines_of,
    runs,
    subclasses,
    takes_all_of,
)
from autofuse.source.evidence.matching import OF_FUNCTIONS, concerns, whole_modules
from autofuse.source.evidence.names_read import NamesRead, NameUse, names_read
from autofuse.source.evidence.readings import as_method_of, with_value, without, without_helper
from autofuse.source.evidence.torch_patches import may_be_patched, patched

_ALWAYS = CODE_AND_SETTINGS.union(OF_FUNCTIONS)  # changes of them count, whatever is read
_MOST = 24  # readings for the sake of one edit; where more would be needed, it is declined


@dataclass(frozen=True, eq=False)
class ChangedReading:
    """The function as it is read where something has changed: what has, where, and in which words."""

    key: str
    defined: Defined
    name: str
    text: str
    how: str
    line: int


def which_code(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where the given files show that an edit reads through something that is not always the same."""
    if claim.again is None:
        return
    read = names_read(claim.defined)
    patches = patched(claim, read)
    if isinstance(patches, Fails):
        yield patches
        return
    yield from may_be_patched(claim, read)
    others = _other_files(claim, read)
    if (fails := _new_name_is_bound_elsewhere(claim, others)) is not None:
        yield fails
        return
    tried = set[str]()
    changed = (*_inherited(claim, read), *_overridden(claim, read, others), *_changed(claim, read, others))
    for reading in (*changed, *_by_patch(claim, patches)):
        if reading.key in tried:
            continue
        tried.add(reading.key)
        if len(tried) > _MOST or not claim.again(reading.defined):
            yield _fails(reading)
            return


def _fails(r: ChangedReading) -> Fails:
    why = because(code_that_runs.OTHER_CODE_RUNS, name=r.name, how=r.how)
    return Fails(why, enables=False, text=r.text, line=r.line)


def _other_files(claim: Claim, read: NamesRead) -> tuple[FileScope, ...]:
    return claim.files.concerning(claim.defined.scope) if claim.files is not None else ()


def _new_name_is_bound_elsewhere(claim: Claim, others: tuple[FileScope, ...]) -> Fails | None:
    """Fails where another file gives this one another meaning for the name that the new call starts with."""
    name, home = claim.edit.becomes.partition(".")[0], claim.defined.scope.file
    for scope in others if home is not None else ():
        for change in scope.index(changes_in):
            if change.kind == "assigned" and change.name == name and isinstance(change.receiver, ast.Name):
                if (scope.name_of(change.receiver) or "").rpartition(".")[2] == home.stem:  # type: ignore[union-attr]
                    why = because(code_that_runs.OTHER_CODE_RUNS, name=name, how=f"in {scope.file} replaces")
                    text = ast.unparse(change.node).splitlines()[0]
                    return Fails(why, enables=False, text=text, line=change.line)
    return None


def _overridden(claim: Claim, read: NamesRead, others: tuple[FileScope, ...]) -> Iterator[ChangedReading]:
    """The function as a method of each subclass that runs it and overrides what it reads."""
    d = claim.defined
    if d.owner is None:
        return
    names = {r.name for r in read.names if r.owner is d.owner and not r.inner}
    for found in subclasses(d.scope, d.owner, others):
        anew = _anew(found, d)
        if "__getattribute__" in anew or _looks_up_itself(found, d):
            yield from _looked_up(found, d, names)
            continue
        own = names & anew
        if own and runs(found, d.owner, d.function.name):
            name = min(own)
            home = next((c for c in _lineage(found, d) if name in defines(c.owner)), found)
            where = f"in {found.scope.file} " if found.scope.tree is not d.scope.tree else ""
            yield ChangedReading(
                f"class {found.name} {id(found.owner.node)}", as_method_of(d, found), f"self.{name}",
                f"class {found.name}", f"{where}overrides", lines_of(home.owner, name),
            )  # fmt: skip


def _inherited(claim: Claim, read: NamesRead) -> Iterator[ChangedReading]:
    """The function without each attribute that a base in another file assigns later than its constructor."""
    d = claim.defined
    if d.owner is None:
        return
    names = {r.name for r in read.names if r.owner is d.owner and not r.inner}
    for base in Subclass(d.owner, d.scope).lineage():
        if base.scope.tree is not d.scope.tree:
            for name in sorted(names & assigned_later(base.owner)):
                yield ChangedReading(
                    f"self.{name} ", without(d, name), f"self.{name}", f"class {base.name}",
                    f"in {base.scope.file} assigns", lines_of(base.owner, name),
                )  # fmt: skip


def _looks_up_itself(found: Subclass, d: Defined) -> bool:
    """Whether a subclass has a `__getattr__` that does not ask that of nn.Module first, which gives children."""
    own = [m for c in _lineage(found, d) if (m := c.owner.methods.get("__getattr__")) is not None]
    return any(not any(_asks_super(n) for n in ast.walk(_first(m))) for m in own)


def _first(method: Function) -> ast.AST:
    """The first statement of a method, without the handlers of a `try`."""
    body = [s for s in method.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    first = body[0] if body else method
    return first.body[0] if isinstance(first, ast.Try) else first


def _asks_super(n: ast.AST) -> bool:
    return isinstance(n, ast.Attribute) and n.attr == "__getattr__" and isinstance(n.value, ast.Call)


def _looked_up(found: Subclass, d: Defined, names: set[str]) -> Iterator[ChangedReading]:
    """The function without each name that a subclass may look up in its own way."""
    where = f"in {found.scope.file} " if found.scope.tree is not d.scope.tree else ""
    for name in sorted(names):
        yield ChangedReading(
            f"self.{name} ", without(d, name), f"self.{name}", f"class {found.name}", f"{where}overrides",
            found.owner.node.lineno,
        )  # fmt: skip


def _anew(found: Subclass, d: Defined) -> set[str]:
    return {n for c in _lineage(found, d) for n in defines(c.owner)}


def _lineage(found: Subclass, d: Defined) -> list[Subclass]:
    """A subclass and its other bases, without the class itself and its bases."""
    own = {c.node.name for c in d.scope.lineage(d.owner)}
    return [c for c in found.lineage() if c.name not in own]


def _changed(claim: Claim, read: NamesRead, others: tuple[FileScope, ...]) -> Iterator[ChangedReading]:
    """The function with each name that something assigns, patches or hooks from outside."""
    d = claim.defined
    renewing = [s for s in (claim.files.renewing(d.scope) if claim.files is not None else ()) if s not in others]
    families = _Families(d, others)
    for scope in (d.scope, *others, *renewing):
        for change in scope.index(_ByName).of({r.name for r in read.names}):
            if scope in renewing and (change.kind != "assigned" or change.name is not None):
                continue  # what it does to modules that it makes itself
            for r in read.names:
                if concerns(change, scope, r, families.of(r, scope)):
                    yield _reading(d, read, scope, change, r)
            if may_change_children(change):
                known = {id(r): families.of(r, scope) for r in read.names}
                for r in changed_children(change, scope, read, known):
                    if not _is_read_anew(claim, change, r):
                        yield _unknown(d, scope, change, r.via, r.name)
            if change.name is None and change.kind == "hooked":
                for via in whole_modules(change, scope, d, read):
                    yield _unknown(d, scope, change, via)


def _is_read_anew(claim: Claim, change: CodeChange, r: NameUse) -> bool:
    """Whether the new text reads the setting that is changed from the child itself: `self.drop.p`."""
    return any(f".{r.name}.{change.name}" in new.text for _, new in claim.edit.replacements)


class _ByName:
    """The changes of a file, by the name that is changed."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str | None, list[tuple[int, CodeChange]]] = {}
        for at, change in enumerate(changes_in(tree)):
            self._known.setdefault(change.name, []).append((at, change))

    def of(self, names: Collection[str]) -> list[CodeChange]:
        """Those that may be of one of `names`, or of the child that has one, in their order."""
        asked = {*names, *_ALWAYS, None}
        return [c for _, c in sorted((p for n in asked for p in self._known.get(n, ())), key=lambda p: p[0])]


class _Families:
    """A class, its bases and its subclasses, for each class that is read: by the names that each file has for them."""

    def __init__(self, d: Defined, others: tuple[FileScope, ...]) -> None:
        self.others = others
        self.known: dict[tuple[int, int], frozenset[str]] = {}

    def of(self, r: NameUse, scope: FileScope) -> frozenset[str]:
        """The classes an instance of which may have the name; those of other files with their module in front."""
        if r.owner is None:
            return frozenset()
        key = id(r.owner.node), id(scope.tree)
        if key not in self.known:
            every = [(c.node.name, r.scope) for c in r.scope.lineage(r.owner)]
            every += [(s.name, s.scope) for s in subclasses(r.scope, r.owner, self.others)]
            here = {name for name, home in every if home.tree is scope.tree}
            abroad = {name for name, home in every if home.tree is not scope.tree}
            imported = {
                n
                for n, i in scope.imports.items()
                if any((a.asname or a.name) == n and a.name in abroad for a in i.names)
            }
            if takes_all_of(scope, r.scope):
                imported |= abroad - scope.classes.keys()
            self.known[key] = frozenset(here | imported | {f".{name}" for name in abroad})
        return self.known[key]


def _reading(d: Defined, read: NamesRead, scope: FileScope, change: CodeChange, r: NameUse) -> ChangedReading:
    """`d` as it is after a change of `r`."""
    if r.owner is None and not r.inner and r.via == r.name:
        return _made(d, scope, change, r.name, without_helper(d, r.name), "")
    if r.inner or r.owner is not d.owner or change.kind != "assigned" or r.name != r.via:
        return _unknown(d, scope, change, r.via, r.name)
    value = None if d.scope.method(d.owner, r.name) is not None else change.value
    told = ast.dump(value) if value is not None else ""
    return _made(d, scope, change, f"self.{r.name}", with_value(d, scope, r.name, value), told)


def _unknown(d: Defined, scope: FileScope, change: CodeChange, via: str, name: str = "") -> ChangedReading:
    """`d` where nothing is known of what it reads by the name `via`."""
    helper = via in d.scope.functions or via in d.scope.variables
    made = without_helper(d, via) if helper else without(d, via)
    return _made(d, scope, change, via if helper else f"self.{via}", made, "")


def _made(d: Defined, scope: FileScope, change: CodeChange, name: str, made: Defined, told: str) -> ChangedReading:
    where = f"in {scope.file} " if scope.tree is not d.scope.tree else ""
    text = ast.unparse(change.node).splitlines()[0]
    how = "hooks" if change.kind == "hooked" else "may replace" if change.name is None else "replaces"
    return ChangedReading(f"{name} {told}", made, name, text, where + how, change.line)


def _by_patch(claim: Claim, patches: dict[str, CodeChange]) -> Iterator[ChangedReading]:
    """The function without each child that is made by a class of torch's that is patched."""
    for via, change in patches.items():
        yield _unknown(claim.defined, claim.defined.scope, change, via)
