"""The classes that an expression may name: `Attention`, `layers.Attention`, `BASES[0]`, `make_base()`.

A name is followed through assignments, imports, re-exports and `import *`, within a file and from file to file. An
expression that only run time can resolve may name any class, which None stands for. A class of a library is no class
of the project and is left out.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autofuse.source.capture.bindings import Function, bindings, bound_names
from autofuse.source.capture.file_lookups import FILE_LOOKUPS
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.parsed_files import PARSED, real_path
from autofuse.source.capture.project_files import LIBRARIES, files_of_import, read_scope
from autofuse.source.capture.scope import FileScope, module_bindings, target_pairs
from autofuse.source.capture.syntax import walk

_MAX_STEPS = 12  # local names and attributes that are followed for one expression
_MOST_NAMES = 40  # names of modules that are followed, one from another
_LOOKUPS = frozenset("getattr get build pop __getitem__ reduce partial import_module __import__".split())
_GENERIC = frozenset({"Generic", "Protocol", "Annotated"})
Enclosing = tuple[Function | ast.ClassDef, ...]


@dataclass(frozen=True)
class NamedClass:
    """A class that an expression may name.

    Attributes:
        name: The name in the class statement, or the last known name if no file shows the statement.
        file: The real path of the file with the class statement; "" if no file shows it.
        line: The line of the class statement; 0 if no file shows it. It does not count in comparisons, because an
            edit may move the statement. So classes of one name in one file are the same.
    """

    name: str
    file: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class _Position:
    """The place of a name: the file, the functions and classes around it, and the names that may still be followed."""

    scope: FileScope
    enclosing: Enclosing = ()
    steps: int = _MAX_STEPS

    def next(self, scope: FileScope | None = None, enclosing: Enclosing | None = None) -> _Position:
        return _Position(scope or self.scope, self.enclosing if enclosing is None else enclosing, self.steps - 1)


def classes_named(scope: FileScope, written: ast.expr, enclosing: Enclosing = ()) -> frozenset[NamedClass | None]:
    """Return the classes of the project that an expression may name; None among them stands for any class.

    Args:
        scope: The scope of the file that contains the expression.
        written: The expression.
        enclosing: The functions and classes around the expression, outermost first.
    """
    return frozenset(_expression(written, _Position(scope, enclosing)))


def names_class_of(scope: FileScope, attribute: str, home: str) -> bool:
    """Whether the file of `scope` names a class of the file `home` by an attribute: `package.layers.Attention`."""
    uses = [n for n in node_index(scope.tree).of(ast.Attribute) if n.attr == attribute]
    if any(c is not None and c.file == home and c.line for n in uses for c in classes_named(scope, n)):
        return True
    return any(_path(m) == home for n in uses for m in _modules(n, _Position(scope)))


def names_module(scope: FileScope, name: str, home: str) -> bool:
    """Whether a name of a file is the module `home`, also if another file imports it: `from package import layers`."""
    return any(_path(m) == home for m in _modules(ast.Name(name, ast.Load()), _Position(scope)))


def class_of_statement(node: ast.ClassDef, scope: FileScope) -> NamedClass:
    """Return what names that refer to a class statement resolve to."""
    return NamedClass(node.name, _path(scope), node.lineno)


def _path(scope: FileScope) -> str:
    return real_path(os.path.abspath(scope.file)) if scope.file is not None else f"<{id(scope.tree)}>"


def _expression(written: ast.expr, at: _Position) -> Iterator[NamedClass | None]:
    if at.steps <= 0:
        yield None
        return
    match written:
        case ast.Name(id=name):
            yield from _name(name, at)
        case ast.Attribute():
            yield from _attribute(written, at)
        case ast.Constant():
            return
        case ast.Subscript(value=value, slice=index):
            named = frozenset(_expression(value, at.next()))
            if not named and isinstance(value, ast.Name) and not _is_library(value, at.scope):
                named = frozenset({None} if value.id in at.scope.bound else ())
            by_text = isinstance(index, ast.Constant) and isinstance(index.value, str)
            yield from {*named, None} if by_text else named
        case ast.IfExp(body=one, orelse=two):
            yield from (*_expression(one, at.next()), *_expression(two, at.next()))
        case ast.BoolOp(values=values):
            for v in values:
                yield from _expression(v, at.next())
        case ast.NamedExpr(value=value):
            yield from _expression(value, at.next())
        case ast.Call():
            yield from _call(written, at)
        case _:
            yield None


def _call(call: ast.Call, at: _Position) -> Iterator[NamedClass | None]:
    """The classes that a call may return. A function of a library returns no class of the project but its arguments."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last in _LOOKUPS or not _is_foreign_function(call.func, at):
        yield None
    for a in (*call.args, *(k.value for k in call.keywords)):
        if isinstance(a, (ast.Name, ast.Attribute)):
            yield from (c for c in _expression(a, at.next()) if c is not None)


def _is_foreign_function(function: ast.expr, at: _Position) -> bool:
    """Whether a function is imported from a package that is no part of the project: `namedtuple`, `with_metaclass`."""
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or any(root.id in _local_names(e) for e in at.enclosing):
        return False
    nodes = at.scope.index(module_bindings).get(root.id, ())
    imports = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    is_imported = bool(imports) and len(imports) == len(nodes)
    return is_imported and (_is_library(root, at.scope) or not any(_origins(n, root.id, at.scope) for n in imports))


def _origins(node: ast.Import | ast.ImportFrom, name: str, scope: FileScope) -> list[Path]:
    """The files of the project that an import of `name` reads."""
    files = _files_of(node, name, scope)
    if isinstance(node, ast.ImportFrom) and scope.file is not None:
        files += files_of_import(node, scope.file)
    return files


def _is_library(node: ast.expr, scope: FileScope) -> bool:
    root = (scope.name_of(node) or "").partition(".")[0]
    return root in LIBRARIES or root in sys.stdlib_module_names or isinstance(node, ast.Name) and node.id in _GENERIC


def _name(name: str, at: _Position) -> Iterator[NamedClass | None]:
    for i in reversed(range(len(at.enclosing))):
        around = at.enclosing[i]
        if isinstance(around, ast.ClassDef) and i != len(at.enclosing) - 1:
            continue  # names of a class body are visible in the body only, not in the functions inside
        if name in _local_names(around):
            nodes = [node for n, node in bindings(around.body) if n == name]
            outer = at.next(enclosing=at.enclosing[: i + 1])
            yield from (c for n in nodes for c in _binding(n, name, outer))
            if not nodes:
                yield None  # a parameter
            return
    yield from _module_name(name, at.next(enclosing=()))


def _local_names(around: Function | ast.ClassDef) -> frozenset[str]:
    return frozenset(n for n, _ in bindings(around.body)) if isinstance(around, ast.ClassDef) else bound_names(around)


def _module_name(name: str, at: _Position) -> frozenset[NamedClass | None]:
    """The classes that a name of a module may name, computed once for each name of a file."""
    known = PARSED.classes_of_names.get((_path(at.scope), name))
    if known is None:
        return _RESOLVING.resolve(name, at.scope)
    FILE_LOOKUPS.count += 1
    return known


@dataclass
class _Resolving:
    """The names that are being followed, outermost first. Names of files that import each other may form a cycle.

    Attributes:
        names: The file and the name.
        met: The place in `names` of the outermost one that was met again, since the innermost one was begun.
    """

    names: list[tuple[int, str]] = field(default_factory=list)
    met: int = _MOST_NAMES

    def resolve(self, name: str, scope: FileScope) -> frozenset[NamedClass | None]:
        """The classes of a name. They are kept if they do not depend on a name whose classes are not complete yet."""
        key, place, met = (id(scope), name), len(self.names), self.met
        if key in self.names or place == _MOST_NAMES:
            self.met = min(met, self.names.index(key) if key in self.names else 0)
            return frozenset({None})
        self.names.append(key)
        self.met = _MOST_NAMES
        try:
            found = frozenset(_name_of_module(name, _Position(scope)))
        finally:
            self.names.pop()
            is_complete, self.met = self.met >= place, min(met, self.met if self.met < place else _MOST_NAMES)
        if is_complete and scope.file is not None:
            PARSED.classes_of_names[_path(scope), name] = found
        return found


_RESOLVING = _Resolving()


def _name_of_module(name: str, at: _Position) -> Iterator[NamedClass | None]:
    if name in at.scope.reassigned:
        yield None
    nodes = at.scope.index(module_bindings).get(name, ())
    for node in nodes:
        yield from _binding(node, name, at)
    if not nodes and at.scope.hides_names:
        for file in at.scope.cached_for_scope(_star_files):
            other = read_scope(file, name) or read_scope(file, "import *")
            if other is not None:
                yield from _module_name(name, at.next(other))


def _star_files(scope: FileScope) -> tuple[Path, ...]:
    """The files of the project whose names `from x import *` brings into a file."""
    if scope.file is None:
        return ()
    file = scope.file
    return tuple(dict.fromkeys(f for star in scope.index(star_imports) for f in files_of_import(star, file)))


def star_imports(tree: ast.Module) -> tuple[ast.ImportFrom, ...]:
    """Return the `from x import *` statements of a file."""
    return tuple(n for n in walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")


def _binding(node: ast.AST, name: str, at: _Position) -> Iterator[NamedClass | None]:
    match node:
        case ast.ClassDef():
            yield class_of_statement(node, at.scope)
        case ast.Import():
            return  # a module
        case ast.ImportFrom():
            yield from _imported_classes(node, name, at)
        case ast.Assign(targets=targets, value=value):
            pairs = [p for t in targets for p in target_pairs(t, value)]
            values = [v for t, v in pairs if isinstance(t, ast.Name) and t.id == name]
            for v in values:
                yield from _expression(v, at.next())
            if not values:
                yield None
        case ast.AnnAssign(target=ast.Name(), value=value):
            yield from _expression(value, at.next()) if value is not None else ()
        case _:
            yield None


def _imported_classes(statement: ast.ImportFrom, name: str, at: _Position) -> Iterator[NamedClass | None]:
    original = next((a.name for a in statement.names if (a.asname or a.name) == name), name)
    root = (statement.module or "").partition(".")[0]
    if not statement.level and (root in LIBRARIES or root in sys.stdlib_module_names):
        return
    found = list[NamedClass | None]()
    for file in files_of_import(statement, at.scope.file) if at.scope.file is not None and at.steps > 0 else ():
        other = read_scope(file, original) or read_scope(file, "import *")
        if other is not None:
            found += _module_name(original, at.next(other, ()))
    yield from found or [NamedClass(original)]


def _attribute(written: ast.Attribute, at: _Position) -> Iterator[NamedClass | None]:
    """The classes that `layers.Attention`, `self.base` or `Registry.base` may name."""
    if _is_library(written, at.scope):
        return
    found = list[NamedClass | None]()
    modules = list(_modules(written.value, at))
    for module in modules:
        found += _module_name(written.attr, at.next(module, ()))
    root: ast.expr = written
    while isinstance(root, ast.Attribute):
        root = root.value
    if not modules and isinstance(root, ast.Name):
        found += _class_attribute(written, root, at)
    elif not modules:
        found.append(None)
    yield from found or [NamedClass(written.attr)]


def _class_attribute(written: ast.Attribute, root: ast.Name, at: _Position) -> Iterator[NamedClass | None]:
    """The classes that an attribute of a class of the file may hold, or an attribute of a local object: any class."""
    if any(root.id in _local_names(e) for e in at.enclosing):
        yield None
    elif root.id in at.scope.classes and written.value is root:
        body = at.scope.classes[root.id].node.body
        nodes = [node for n, node in bindings(body) if n == written.attr]
        yield from (c for n in nodes for c in _binding(n, written.attr, at.next(enclosing=())))
        if not nodes:
            yield None


def _modules(value: ast.expr, at: _Position) -> Iterator[FileScope]:
    """The files of the project that an expression may name as a module: `layers`, `package.layers`."""
    if at.steps <= 0 or at.scope.file is None:
        return
    match value:
        case ast.Name(id=name):
            nodes: list[ast.AST] = [n for e in at.enclosing for k, n in bindings(e.body) if k == name]
            for node in (*nodes, *at.scope.index(module_bindings).get(name, ())):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    yield from _scopes(_files_of(node, name, at.scope))
                    yield from _modules_of_module(node, name, at)
                elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) for t in node.targets):
                    yield from _modules(node.value, at.next())
        case ast.Attribute(value=inner, attr=attr):
            for module in _modules(inner, at.next()):
                yield from _modules(ast.Name(attr, ast.Load()), at.next(module, ()))
                if module.file is not None:
                    folder = module.file.parent
                    yield from _scopes([folder / f"{attr}.py", folder / attr / "__init__.py"])
            if (dotted := _dotted(value)) and _binds_package(dotted, at.scope):
                yield from _scopes(_module_files(dotted, at.scope))
        case ast.Call(func=ast.Name(id=how) | ast.Attribute(attr=how), args=[ast.Constant(str(dotted)), *_]) if how in (
            "import_module",
            "__import__",
        ):
            yield from _scopes(_module_files(dotted, at.scope))
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(str(dotted))):
            yield from _scopes(_module_files(dotted, at.scope))


def _modules_of_module(node: ast.AST, name: str, at: _Position) -> Iterator[FileScope]:
    """The modules that another module imports under a name: `from package import layers`."""
    if not isinstance(node, ast.ImportFrom) or at.scope.file is None:
        return
    for original in (a.name for a in node.names if (a.asname or a.name) == name):
        for file in files_of_import(node, at.scope.file):
            if (other := read_scope(file, original)) is not None:
                yield from _modules(ast.Name(original, ast.Load()), at.next(other, ()))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""


def _binds_package(dotted: str, scope: FileScope) -> bool:
    nodes = scope.index(module_bindings).get(dotted.partition(".")[0], ())
    return any(isinstance(n, ast.Import) and any(a.asname is None for a in n.names) for n in nodes)


def _files_of(node: ast.Import | ast.ImportFrom, name: str, scope: FileScope) -> list[Path]:
    """The files of the module that an import binds to `name`, if it is a module of the project."""
    if scope.file is None:
        return []
    if isinstance(node, ast.Import):
        modules = [a.name if a.asname else name for a in node.names if (a.asname or a.name.partition(".")[0]) == name]
        return [f for module in modules for f in _module_files(module, scope)]
    originals = [a.name for a in node.names if (a.asname or a.name) == name]
    inner = [ast.ImportFrom(f"{node.module or ''}.{o}".lstrip("."), [], node.level) for o in originals]
    return [f for i in inner for f in files_of_import(i, scope.file)]


def _module_files(dotted: str, scope: FileScope) -> list[Path]:
    root = dotted.partition(".")[0]
    if scope.file is None or root in LIBRARIES or root in sys.stdlib_module_names:
        return []
    return list(files_of_import(ast.ImportFrom(dotted, [], 0), scope.file))


def _scopes(files: list[Path]) -> Iterator[FileScope]:
    FILE_LOOKUPS.count += len(files)
    return (s for f in files if (s := read_scope(f)) is not None)
