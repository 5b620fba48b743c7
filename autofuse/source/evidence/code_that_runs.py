"""Finds out which code will run. The given files may replace what an edit reads.

A subclass may override a helper, a child or an attribute. Other code may assign, patch or hook it. Each such change
gives a variant of the function, which is captured again. If the variant gives the same edit, equally safe, the edit
does not rely on the change. Otherwise other code may run, and the edit is declined.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.evidence.borrowed_methods import find_borrowed_uses
from autofuse.source.evidence.change_matching import FUNCTION_ATTRIBUTES, find_hooked_children, may_change_name
from autofuse.source.evidence.changes import CodeChange, find_changes
from autofuse.source.evidence.child_changes import CODE_AND_SETTINGS, find_changed_children, may_change_children
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.class_names import class_of_statement
from autofuse.source.evidence.function_variants import (
    as_subclass_method,
    with_attribute_value,
    with_unknown_attribute,
    with_unknown_helper,
)
from autofuse.source.evidence.names_read import NamesRead, NameUse, find_names_read
from autofuse.source.evidence.receivers import changes_given_object
from autofuse.source.evidence.subclasses import (
    Subclass,
    attributes_assigned_outside_init,
    defined_names,
    definition_line,
    find_subclasses,
    imports_everything_from,
    runs_base_function,
)
from autofuse.source.evidence.torch_patches import find_patched_children, find_possible_patches

_ALWAYS = CODE_AND_SETTINGS.union(FUNCTION_ATTRIBUTES)  # a change of these names matters for every function
_MAX_VARIANTS = 24  # that are captured for one edit; an edit that needs more is declined


@dataclass(frozen=True, eq=False)
class FunctionVariant:
    """A variant of the function, and the change that leads to it.

    Attributes:
        key: variants with the same key are captured once.
        defined: the variant.
        name: the changed name, as a message shows it: `self.drop`.
        text: the code that makes the change.
        how: the verb of the message: "overrides", "in other.py replaces".
        line: the line of the change.
        is_possible: whether the text does not show that this variant exists: only run time knows the base of its class.
    """

    key: str
    defined: DefinedFunction
    name: str
    text: str
    how: str
    line: int
    is_possible: bool = False


def check_code_that_runs(claim: Claim) -> Iterator[Missing | Fails]:
    """Fail if the given files change a name that the edit relies on. Yield an assumption if they may change one."""
    if claim.gives_same_edit is None:
        return
    names_read = find_names_read(claim.defined)
    patches = find_patched_children(claim, names_read)
    if isinstance(patches, Fails):
        yield patches
        return
    yield from find_possible_patches(claim, names_read)
    others = _other_files(claim, names_read)
    if (fails := _find_rebound_name(claim, others)) is not None:
        yield fails
        return
    tried, possible = set[str](), list[FunctionVariant]()
    variants = (
        *_variants_by_base_classes(claim, names_read),
        *_variants_by_subclasses(claim, names_read, others),
        *_variants_by_borrowed_uses(claim, names_read, others),
        *_variants_by_changes(claim, names_read, others),
        *_variants_by_patches(claim, patches),
    )
    for variant in sorted(variants, key=lambda v: v.is_possible):
        if variant.key in tried:
            continue
        tried.add(variant.key)
        if len(tried) <= _MAX_VARIANTS and claim.gives_same_edit(variant.defined):
            continue
        if not variant.is_possible:
            yield _fails(variant)
            return
        possible.append(variant)
        break  # one assumption is enough
    yield from map(_missing, possible)


def _missing(variant: FunctionVariant) -> Missing:
    """The assumption that a class with a computed base is no subclass."""
    return Missing(
        f"assumes that `{variant.text}` {variant.how} no `{variant.name}` (line {variant.line}; only run time knows "
        "its base class)"
    )


def _fails(variant: FunctionVariant) -> Fails:
    why = because(code_that_runs.OTHER_CODE_RUNS, name=variant.name, how=variant.how)
    return Fails(why, enables=False, text=variant.text, line=variant.line)


def _other_files(claim: Claim, names_read: NamesRead) -> tuple[FileScope, ...]:
    return claim.files.files_changing_classes(claim.defined.scope) if claim.files is not None else ()


def _find_rebound_name(claim: Claim, others: tuple[FileScope, ...]) -> Fails | None:
    """Return Fails if another file rebinds, in this module, the name that the new call begins with."""
    name, home = claim.edit.becomes.partition(".")[0], claim.defined.scope.file
    for scope in others if home is not None else ():
        for change in scope.index(find_changes):
            if change.kind == "assigned" and change.name == name and isinstance(change.receiver, ast.Name):
                if (scope.name_of(change.receiver) or "").rpartition(".")[2] == home.stem:  # type: ignore[union-attr]
                    why = because(code_that_runs.OTHER_CODE_RUNS, name=name, how=f"in {scope.file} replaces")
                    text = ast.unparse(change.node).splitlines()[0]
                    return Fails(why, enables=False, text=text, line=change.line)
    return None


def _variants_by_subclasses(
    claim: Claim, names_read: NamesRead, others: tuple[FileScope, ...]
) -> Iterator[FunctionVariant]:
    """Yield the function as a method of each subclass that runs it and overrides a name that it reads."""
    defined = claim.defined
    if defined.owner is None:
        return
    names = {r.name for r in names_read.names if r.owner is defined.owner and not r.inner}
    shown = tuple(find_subclasses(defined.scope, defined.owner, others))
    for subclass in shown:
        yield from _variants_by_subclass(subclass, defined, names)
    # Files that do not name the class may define a subclass, but what they change elsewhere is not looked at.
    computing = claim.files.files_computing_bases(defined.scope) if claim.files is not None else ()
    for subclass in find_subclasses(defined.scope, defined.owner, (*others, *computing)) if computing else ():
        if all(subclass.owner.node is not s.owner.node for s in shown):
            for variant in _variants_by_subclass(subclass, defined, names):
                yield replace(variant, is_possible=True)


def _variants_by_subclass(subclass: Subclass, defined: DefinedFunction, names: set[str]) -> Iterator[FunctionVariant]:
    """Yield the function as a method of one subclass, if that runs it and overrides one of `names`."""
    assert defined.owner is not None
    overridden = _overridden_names(subclass, defined)
    if "__getattribute__" in overridden or _has_own_getattr(subclass, defined):
        yield from _variants_by_getattr(subclass, defined, names)
        return
    shared = names & overridden
    if shared and runs_base_function(subclass, defined.owner, defined.function.name):
        name = min(shared)
        home = next((c for c in _lineage(subclass, defined) if name in defined_names(c.owner)), subclass)
        where = f"in {subclass.scope.file} " if subclass.scope.tree is not defined.scope.tree else ""
        yield FunctionVariant(
            f"class {subclass.name} {id(subclass.owner.node)}", as_subclass_method(defined, subclass),
            f"self.{name}", f"class {subclass.name}", f"{where}overrides", definition_line(home.owner, name),
        )  # fmt: skip


def _variants_by_borrowed_uses(
    claim: Claim, names_read: NamesRead, others: tuple[FileScope, ...]
) -> Iterator[FunctionVariant]:
    """Yield the function without each name that an object of another class would define, if one may run it."""
    defined = claim.defined
    if defined.owner is None:
        return
    names = sorted({r.name for r in names_read.names if r.owner is defined.owner and not r.inner})
    family = {class_of_statement(defined.owner.node, defined.scope)}
    family |= {class_of_statement(s.owner.node, s.scope) for s in find_subclasses(defined.scope, defined.owner, others)}
    for scope in (defined.scope, *others) if names else ():
        for use in find_borrowed_uses(scope, family, defined.function.name):
            where = f"in {scope.file} " if scope.tree is not defined.scope.tree else ""
            for name in names:
                yield FunctionVariant(
                    f"self.{name} ", with_unknown_attribute(defined, name), f"self.{name}", ast.unparse(use),
                    f"{where}runs for another class, which has its own value of", use.lineno,
                )  # fmt: skip


def _variants_by_base_classes(claim: Claim, names_read: NamesRead) -> Iterator[FunctionVariant]:
    """Yield the function without each attribute that a base class in another file assigns outside its constructor."""
    defined = claim.defined
    if defined.owner is None:
        return
    names = {r.name for r in names_read.names if r.owner is defined.owner and not r.inner}
    for base in Subclass(defined.owner, defined.scope).lineage():
        if base.scope.tree is not defined.scope.tree:
            for name in sorted(names & attributes_assigned_outside_init(base.owner)):
                yield FunctionVariant(
                    f"self.{name} ", with_unknown_attribute(defined, name), f"self.{name}", f"class {base.name}",
                    f"in {base.scope.file} assigns", definition_line(base.owner, name),
                )  # fmt: skip


def _has_own_getattr(subclass: Subclass, defined: DefinedFunction) -> bool:
    """Whether a subclass has a `__getattr__` that does not first call the one of nn.Module, which returns children."""
    methods = [m for c in _lineage(subclass, defined) if (m := c.owner.methods.get("__getattr__")) is not None]
    return any(not any(_calls_super(n) for n in ast.walk(_first_statement(m))) for m in methods)


def _first_statement(method: Function) -> ast.AST:
    """The first statement of a method; if that is a `try`, the first statement of its body."""
    body = [s for s in method.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    first = body[0] if body else method
    return first.body[0] if isinstance(first, ast.Try) else first


def _calls_super(n: ast.AST) -> bool:
    return isinstance(n, ast.Attribute) and n.attr == "__getattr__" and isinstance(n.value, ast.Call)


def _variants_by_getattr(subclass: Subclass, defined: DefinedFunction, names: set[str]) -> Iterator[FunctionVariant]:
    """Yield the function without each name that a subclass may look up by itself."""
    where = f"in {subclass.scope.file} " if subclass.scope.tree is not defined.scope.tree else ""
    for name in sorted(names):
        yield FunctionVariant(
            f"self.{name} ", with_unknown_attribute(defined, name), f"self.{name}", f"class {subclass.name}",
            f"{where}overrides", subclass.owner.node.lineno,
        )  # fmt: skip


def _overridden_names(subclass: Subclass, defined: DefinedFunction) -> set[str]:
    return {n for c in _lineage(subclass, defined) for n in defined_names(c.owner)}


def _lineage(subclass: Subclass, defined: DefinedFunction) -> list[Subclass]:
    """The subclass and its other base classes, except for the class of the function and its base classes."""
    known_names = {c.node.name for c in defined.scope.lineage(defined.owner)}
    return [c for c in subclass.lineage() if c.name not in known_names]


def _variants_by_changes(
    claim: Claim, names_read: NamesRead, others: tuple[FileScope, ...]
) -> Iterator[FunctionVariant]:
    """Yield the function with each name that other code assigns, patches or hooks."""
    defined = claim.defined
    given_objects = claim.files.files_changing_objects(defined.scope) if claim.files is not None else ()
    replacing = [s for s in given_objects if s not in others]
    families = _Families(defined, others)
    for scope in (defined.scope, *others, *replacing):
        for change in scope.index(_ChangesByName).of({r.name for r in names_read.names}):
            if scope in replacing and not changes_given_object(change, scope):
                continue
            for r in names_read.names:
                if may_change_name(change, scope, r, families.of(r, scope)):
                    yield _variant_after(defined, names_read, scope, change, r)
            if may_change_children(change):
                families_by_use = {id(r): families.of(r, scope) for r in names_read.names}
                for r in find_changed_children(change, scope, names_read, families_by_use):
                    if not _is_read_by_new_text(claim, change, r):
                        yield _variant_with_unknown(defined, scope, change, r.via, r.name)
            if change.name is None and change.kind == "hooked":
                for via in find_hooked_children(change, scope, defined, names_read):
                    yield _variant_with_unknown(defined, scope, change, via)


def _is_read_by_new_text(claim: Claim, change: CodeChange, r: NameUse) -> bool:
    """Whether the new text reads the changed setting from the child: it contains `self.drop.p`."""
    return any(f".{r.name}.{change.name}" in new.text for _, new in claim.edit.replacements)


class _ChangesByName:
    """The changes of a file by the changed name."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str | None, list[tuple[int, CodeChange]]] = {}
        for at, change in enumerate(find_changes(tree)):
            self._known.setdefault(change.name, []).append((at, change))

    def of(self, names: Collection[str]) -> list[CodeChange]:
        """The changes, in file order, that may affect one of `names` or the child that has one."""
        relevant = {*names, *_ALWAYS, None}
        return [c for _, c in sorted((p for n in relevant for p in self._known.get(n, ())), key=lambda p: p[0])]


class _Families:
    """For each class that the function reads from, the names of the class and its relatives in each file."""

    def __init__(self, defined: DefinedFunction, others: tuple[FileScope, ...]) -> None:
        self.others = others
        self.known: dict[tuple[int, int], frozenset[str]] = {}

    def of(self, r: NameUse, scope: FileScope) -> frozenset[str]:
        """The classes that may have the attribute `r` in their instances, by the names that the file of `scope` uses.

        A class of another file also appears with a dot as a prefix, since its module is not known.
        """
        if r.owner is None:
            return frozenset()
        key = id(r.owner.node), id(scope.tree)
        if key not in self.known:
            every = [(c.node.name, r.scope) for c in r.scope.lineage(r.owner)]
            subclasses = find_subclasses(r.scope, r.owner, self.others)
            every += [(c.name, c.scope) for s in subclasses for c in s.lineage()]  # a mixin may change them too
            local_names = {name for name, home in every if home.tree is scope.tree}
            imported_names = {name for name, home in every if home.tree is not scope.tree}
            visible = {
                n
                for n, i in scope.imports.items()
                if any((a.asname or a.name) == n and a.name in imported_names for a in i.names)
            }
            if imports_everything_from(scope, r.scope):
                visible |= imported_names - scope.classes.keys()
            self.known[key] = frozenset(local_names | visible | {f".{name}" for name in imported_names})
        return self.known[key]


def _variant_after(
    defined: DefinedFunction, names_read: NamesRead, scope: FileScope, change: CodeChange, r: NameUse
) -> FunctionVariant:
    """The function after `change` has changed the name `r`."""
    if r.owner is None and not r.inner and r.via == r.name:
        return _build_variant(defined, scope, change, r.name, with_unknown_helper(defined, r.name), "")
    if r.inner or r.owner is not defined.owner or change.kind != "assigned" or r.name != r.via:
        return _variant_with_unknown(defined, scope, change, r.via, r.name)
    value = None if defined.scope.method(defined.owner, r.name) is not None else change.value
    value_text = ast.dump(value) if value is not None else ""
    return _build_variant(
        defined, scope, change, f"self.{r.name}", with_attribute_value(defined, scope, r.name, value), value_text
    )


def _variant_with_unknown(
    defined: DefinedFunction, scope: FileScope, change: CodeChange, via: str, name: str = ""
) -> FunctionVariant:
    """The function with an unknown value for the name `via`."""
    helper = via in defined.scope.functions or via in defined.scope.variables
    variant = with_unknown_helper(defined, via) if helper else with_unknown_attribute(defined, via)
    return _build_variant(defined, scope, change, via if helper else f"self.{via}", variant, "")


def _build_variant(
    defined: DefinedFunction, scope: FileScope, change: CodeChange, name: str, variant: DefinedFunction, value_text: str
) -> FunctionVariant:
    where = f"in {scope.file} " if scope.tree is not defined.scope.tree else ""
    text = ast.unparse(change.node).splitlines()[0]
    how = "hooks" if change.kind == "hooked" else "may replace" if change.name is None else "replaces"
    return FunctionVariant(f"{name} {value_text}", variant, name, text, where + how, change.line)


def _variants_by_patches(claim: Claim, patches: dict[str, CodeChange]) -> Iterator[FunctionVariant]:
    """Yield the function without each child that belongs to a patched torch class."""
    for via, change in patches.items():
        yield _variant_with_unknown(claim.defined, claim.defined.scope, change, via)
