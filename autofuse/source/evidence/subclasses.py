"""Finds the subclasses of a class, in its own file and in other files of the project, and what they override.

A base class is followed by its name in the same file, and by imports in other files.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.project_files import files_of_import, find_project_class
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.class_names import (
    Enclosing,
    NamedClass,
    class_of_statement,
    classes_named,
    star_imports,
)
from autofuse.source.evidence.created_classes import created_class


@dataclass(frozen=True, eq=False)
class Subclass:
    """A class, and the scope of the file that defines it."""

    owner: ClassScope
    scope: FileScope

    @property
    def name(self) -> str:
        return self.owner.node.name

    def lineage(self) -> list[Subclass]:
        """Returns the class and all its base classes in the project, the nearest first."""
        todo, classes = [self], list[Subclass]()
        while todo:
            current = todo.pop(0)
            if not any(current.owner.node is c.owner.node for c in classes):
                classes.append(current)
                todo += base_classes(current)
        return classes


def find_subclasses(scope: FileScope, owner: ClassScope, files: tuple[FileScope, ...]) -> Iterator[Subclass]:
    """Yields every direct or indirect subclass of `owner` in its file and in `files`, each once."""
    # The result depends on the searched files, so they are part of the key.
    key = (scope.tree, *(f.tree for f in files))
    if key not in owner.known_subclasses:
        owner.known_subclasses[key] = tuple(_collect_subclasses(scope, owner, files))
    yield from owner.known_subclasses[key]


def _collect_subclasses(scope: FileScope, owner: ClassScope, files: tuple[FileScope, ...]) -> Iterator[Subclass]:
    todo, seen = [Subclass(owner, scope)], {id(owner.node)}
    while todo:
        base = todo.pop(0)
        for file in (base.scope, *(f for f in files if f is not base.scope)):
            for node, around in file.index(_class_statements):
                if id(node) not in seen and any(_may_be_base_class(b, base, file, around) for b in node.bases):
                    seen.add(id(node))
                    subclass = Subclass(file.class_scope(node), file)
                    todo.append(subclass)
                    yield subclass


def new_subclasses(file: FileScope, family: Collection[NamedClass]) -> set[NamedClass]:
    """Returns the classes of a file that derive, or may derive, from a class in `family`."""
    known, found = set(family), set[NamedClass]()
    for node, enclosing in file.index(_class_statements):  # a base class comes before its subclasses
        named = frozenset(c for b in node.bases for c in classes_named(file, b, enclosing))
        if any(c is None or c in known or (not c.line and any(c.name == k.name for k in known)) for c in named):
            found.add(class_of_statement(node, file))
            known |= found
    return found - set(family)


def has_computed_base(file: FileScope) -> bool:
    """Whether a class of a file has a base that only run time can resolve, so that it may be any class."""
    return any(
        None in classes_named(file, b, enclosing)
        for node, enclosing in file.index(_class_statements)
        for b in node.bases
    )


def _class_statements(tree: ast.Module) -> tuple[tuple[ast.ClassDef, Enclosing], ...]:
    """Returns every class of a file with the functions and classes around it, also classes that a call creates."""
    index = node_index(tree)
    found = [*index.placed(ast.ClassDef)]
    found += ((i, created) for i, call in index.placed(ast.Call) if (created := created_class(call)) is not None)
    ordered = sorted(found, key=lambda placed: placed[1].lineno)
    return tuple((node, index.definitions_around(i)) for i, node in ordered)  # type: ignore[misc]


def _may_be_base_class(written: ast.expr, base: Subclass, file: FileScope, enclosing: Enclosing) -> bool:
    """Whether the base class expression `written` in `file` is, or may be, the class `base`.

    An expression that only run time can resolve, `MODELS["base"]`, may be any class that is defined before it.
    """
    wanted = class_of_statement(base.owner.node, base.scope)
    for named in classes_named(file, written, enclosing):
        if named is None:
            if file.tree is not base.scope.tree or enclosing or base.owner.node.lineno < written.lineno:
                return True
        elif named == wanted or (not named.line and named.name == wanted.name):
            return True
    return isinstance(written, ast.Name) and _may_be_star_import(written.id, base, file)


def _may_be_star_import(name: str, base: Subclass, file: FileScope) -> bool:
    """Whether `import *` may bind the name of the class, from a file that cannot be followed."""
    return name == base.name and name not in file.bound and imports_everything_from(file, base.scope)


def imports_everything_from(file: FileScope, home: FileScope) -> bool:
    """Whether a file imports `*` from the file of `home`, or from a package that may import from it."""
    if home.file is None or file.file is None:
        return False
    stars = file.index(star_imports)
    return any(home.file.stem in (s.module or "").split(".") or _is_package(s, file.file) for s in stars)


def _is_package(star: ast.ImportFrom, file: Path) -> bool:
    """Whether a star import names a package of the project. Its `__init__.py` may import from any of its files."""
    return any(path.name == "__init__.py" and path.exists() for path in files_of_import(star, file))


def defined_names(owner: ClassScope) -> set[str]:
    """Returns the names that a class itself defines: methods, buffers, class attributes, instance attributes."""
    return {*owner.attributes, *owner.defaults, *owner.buffers, *owner.methods}


def attributes_assigned_outside_init(owner: ClassScope) -> set[str]:
    """Returns the attributes that methods other than the constructor assign."""
    methods = [m for name, m in owner.methods.items() if m is not None and name != "__init__"]
    stored = (n for m in methods for n in walk(m) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}


def base_classes(subclass: Subclass) -> Iterator[Subclass]:
    """Yields the direct base classes of a class that the project defines, in the order of the class statement."""
    for base in subclass.owner.node.bases:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name) and base.id in subclass.scope.classes:
            yield Subclass(subclass.scope.classes[base.id], subclass.scope)
        elif (definition := find_project_class(subclass.scope, base)) is not None:
            yield Subclass(*definition)


def definition_line(owner: ClassScope, name: str) -> int:
    """Returns the line where a class defines `name`; the line of the class if it does not."""
    for n in walk(owner.node):
        is_function = isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name
        is_attribute = isinstance(n, ast.Attribute) and n.attr == name and not isinstance(n.ctx, ast.Load)
        is_name = isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        if is_function or is_attribute or is_name:
            return int(getattr(n, "lineno", 0))
    return owner.node.lineno


def runs_base_function(subclass: Subclass, base: ClassScope, function: str) -> bool:
    """Whether an instance of `subclass` may run the method `function` of `base`.

    It does if no class before `base` in the lineage overrides the method, or if the override calls the base's method.
    """
    seen, todo = set[int](), [subclass]
    while todo:
        current = todo.pop(0)
        if current.owner.node is base.node or (current.name == base.node.name and current.owner is not subclass.owner):
            return True
        if id(current.owner.node) in seen:
            continue
        seen.add(id(current.owner.node))
        override = current.owner.methods.get(function)
        if override is not None:
            return _calls_base_method(override, function)
        if function in defined_names(current.owner):
            return True
        todo = [*base_classes(current), *todo]
    return True


def _calls_base_method(method: Function, function: str) -> bool:
    """Whether a method also calls the method of a base class: by `super()`, or by the name of the class."""
    return any(
        isinstance(n, ast.Attribute) and n.attr == function and not _is_of_self_or_child(n) for n in walk(method)
    )


def _is_of_self_or_child(n: ast.Attribute) -> bool:
    """Whether an attribute belongs to a child or to `self`, not to a base class: `self.child.forward`."""
    return isinstance(n.value, ast.Attribute) or isinstance(n.value, ast.Name) and n.value.id in ("self",)
