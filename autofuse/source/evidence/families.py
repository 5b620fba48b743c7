"""Which classes inherit from a class, in its own file and in the files of its project, and what they define anew.

A base is followed by name in one file, and by imports in others. Knows classes; knows nothing of edits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.project_files import files_of, own_class
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.made_classes import class_made_by


@dataclass(frozen=True, eq=False)
class Subclass:
    """A class that inherits from another, in the file of `scope`."""

    owner: ClassScope
    scope: FileScope

    @property
    def name(self) -> str:
        return self.owner.node.name

    def lineage(self) -> list[Subclass]:
        """The class and all its bases that the project has, the nearest first."""
        todo, found = [self], list[Subclass]()
        while todo:
            at = todo.pop(0)
            if not any(at.owner.node is f.owner.node for f in found):
                found.append(at)
                todo += bases_of(at)
        return found


def subclasses(scope: FileScope, owner: ClassScope, files: tuple[FileScope, ...]) -> Iterator[Subclass]:
    """Every class that inherits from `owner`, directly or not, in its file and in `files`, each once."""
    key = (scope.tree, *(f.tree for f in files))
    if key not in owner.below:
        owner.below[key] = tuple(_subclasses(scope, owner, files))
    yield from owner.below[key]


def _subclasses(scope: FileScope, owner: ClassScope, files: tuple[FileScope, ...]) -> Iterator[Subclass]:
    todo, seen = [Subclass(owner, scope)], {id(owner.node)}
    while todo:
        base = todo.pop(0)
        for file in (base.scope, *(f for f in files if f is not base.scope)):
            for node in file.index(_classes):
                if id(node) not in seen and any(_is(b, base, file) for b in node.bases):
                    seen.add(id(node))
                    found = Subclass(file.class_scope(node), file)
                    todo.append(found)
                    yield found


def _classes(tree: ast.Module) -> tuple[ast.ClassDef, ...]:
    """Every class of a file, those in functions too, and those that a call makes."""
    nodes = list(walk(tree))
    found = [n for n in nodes if isinstance(n, ast.ClassDef)]
    found += [made for n in nodes if isinstance(n, ast.Call) and (made := class_made_by(n)) is not None]
    return tuple(sorted(found, key=lambda n: n.lineno))


def _is(written: ast.expr, base: Subclass, file: FileScope) -> bool:
    """Whether a base written in `file` is the class `base`, or is computed and may be it: `MODELS["base"]`."""
    if _is_computed(written, file):
        return file.tree is not base.scope.tree or base.owner.node.lineno < written.lineno
    if isinstance(written, ast.Subscript):
        written = written.value
    if file is base.scope:
        return isinstance(written, ast.Name) and written.id == base.name
    if isinstance(written, ast.Attribute):  # model.Attention
        return written.attr == base.name
    if not isinstance(written, ast.Name) or written.id in file.classes:
        return False
    found = own_class(file, written)
    if found is not None:
        return found[0].node.name == base.name and _same_file(found[1].file, base.scope.file)
    imported = file.imports.get(written.id)
    if imported is None:
        return written.id == base.name and takes_all_of(file, base.scope)
    return any(a.name == base.name and (a.asname or a.name) == written.id for a in imported.names)


def _same_file(one: Path | None, other: Path | None) -> bool:
    """Whether two paths lead to one file: `lib/variants/../attention.py` is `lib/attention.py`."""
    return one == other or one is not None and other is not None and one.resolve() == other.resolve()


def _is_computed(written: ast.expr, file: FileScope) -> bool:
    """Whether a base is looked up or made when the code runs, and is no class of a library by its name."""
    if isinstance(written, ast.Subscript):  # Base[T] is a class with its argument
        return isinstance(written.slice, ast.Constant) and isinstance(written.slice.value, str)
    if isinstance(written, ast.Name) and written.id in file.variables:
        return _is_computed(file.variables[written.id], file)
    if isinstance(written, ast.Call):
        last = getattr(written.func, "attr", getattr(written.func, "id", ""))
        return last in _LOOK_UP or last.startswith(("get_", "lookup", "resolve", "load_", "import_"))
    return False


_LOOK_UP = frozenset({"getattr", "get", "build", "pop", "__getitem__"})


def takes_all_of(file: FileScope, home: FileScope) -> bool:
    """Whether a file imports `*` from the file of `home`, or from one that may pass on what that has."""
    if home.file is None or file.file is None:
        return False
    stars = file.index(_star_imports)
    return any(home.file.stem in (s.module or "").split(".") or _is_package(s, file.file) for s in stars)


def _star_imports(tree: ast.Module) -> tuple[ast.ImportFrom, ...]:
    return tuple(n for n in walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")


def _is_package(star: ast.ImportFrom, file: Path) -> bool:
    """Whether a star import is of a package of the project, whose __init__ may import from any of its files."""
    return any(found.name == "__init__.py" and found.exists() for found in files_of(star, file))


def defines(owner: ClassScope) -> set[str]:
    """Every name that a class gives its instances anew."""
    return {*owner.attributes, *owner.defaults, *owner.buffers, *owner.methods}


def assigned_later(owner: ClassScope) -> set[str]:
    """The attributes that other methods than the constructor assign."""
    methods = [m for name, m in owner.methods.items() if m is not None and name != "__init__"]
    stored = (n for m in methods for n in walk(m) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}


def bases_of(found: Subclass) -> Iterator[Subclass]:
    """The bases of a class that the project has, the nearest first, whichever file they stand in."""
    for base in found.owner.node.bases:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name) and base.id in found.scope.classes:
            yield Subclass(found.scope.classes[base.id], found.scope)
        elif (other := own_class(found.scope, base)) is not None:
            yield Subclass(*other)


def lines_of(owner: ClassScope, name: str) -> int:
    """The line where a class defines `name`."""
    for n in walk(owner.node):
        named = isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name
        stored = isinstance(n, ast.Attribute) and n.attr == name and not isinstance(n.ctx, ast.Load)
        plain = isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        if named or stored or plain:
            return int(getattr(n, "lineno", 0))
    return owner.node.lineno


def runs(found: Subclass, base: ClassScope, function: str) -> bool:
    """Whether an instance of a subclass may run `function` of `base`: it has no other, or one that calls it too.

    Where a subclass of `found` inherits from both, its own answer counts.
    """
    seen, todo = set[int](), [found]
    while todo:
        at = todo.pop(0)
        if at.owner.node is base.node or (at.name == base.node.name and at.owner is not found.owner):
            return True
        if id(at.owner.node) in seen:
            continue
        seen.add(id(at.owner.node))
        own = at.owner.methods.get(function)
        if own is not None:
            return _calls_on(own, function)
        if function in defines(at.owner):
            return True
        todo = [*bases_of(at), *todo]
    return True


def _calls_on(method: Function, function: str) -> bool:
    """Whether a method runs that of a base as well: by `super()`, or by the name of a class."""
    return any(isinstance(n, ast.Attribute) and n.attr == function and not _of_child(n) for n in walk(method))


def _of_child(n: ast.Attribute) -> bool:
    """`self.child.forward`."""
    return isinstance(n.value, ast.Attribute) or isinstance(n.value, ast.Name) and n.value.id in ("self",)
