"""Resolves the names of one file: imports, functions, classes, and the attributes that methods assign to `self`.

A name has a meaning only if all of its bindings agree. A name that is both imported and assigned has no meaning, and
neither has a function that is defined twice. This module reads one syntax tree and uses no graphs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from autofuse.source.capture.bindings import Function, bindings, bound_names
from autofuse.source.capture.constants import named_constants
from autofuse.source.capture.helpers import is_inlinable
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.reliable_imports import (
    ImportDoubt,
    find_doubtful_imports,
    has_unknown_star_imports,
    names_bound_by_text,
)
from autofuse.source.capture.syntax import cache_walks, walk
from autofuse.source.capture.writes import written_outer_names

_T = TypeVar("_T")
# Base classes of other files with known methods: none of these hides a method of the class itself.
_PLAIN_BASES = ("torch.nn.", "torch.autograd.", "abc.", "typing.")
# Decorators and base classes that turn the annotated names of a class into arguments of its constructor.
_TAKE_FIELDS = frozenset("dataclass define attrs s mutable frozen NamedTuple BaseModel Struct".split())

Assigned = dict[str, list[ast.expr | None]]  # the name of an attribute -> the expressions assigned to it


@dataclass(init=False, eq=False)
class ClassScope:
    """A class and the attributes that it assigns.

    In the lists of assigned expressions, None marks a binding that has no single expression, such as a loop variable.

    The fields are read on first access: most callers need only the bases of a class.

    Attributes:
        node: The definition of the class.
        attributes: The expressions that methods assign to `self`, by attribute.
        defaults: The expressions that the class body assigns, by name.
        buffers: The expressions that methods register as buffers, by name.
        methods: The methods by name; None for a name that is defined more than once.
        writing_methods: The methods that assign to `self`, or that call such a method.
        opaque: Whether a method sets attributes under computed names.
        known_subclasses: The subclasses found so far, by the files that were searched.
    """

    node: ast.ClassDef
    attributes: Assigned
    defaults: Assigned
    buffers: Assigned
    methods: dict[str, Function | None]
    writing_methods: set[str]
    opaque: bool
    known_subclasses: dict[tuple[ast.Module, ...], Any]

    def __init__(self, node: ast.ClassDef, **known: Any) -> None:
        """Create the scope of `node`. `known` holds fields that need not be read from `node`."""
        vars(self).update({"known_subclasses": {}} | known, node=node)

    def __getattr__(self, name: str) -> Any:
        """Read a field on its first access."""
        if name in ("methods", "defaults"):
            fields = _read_class_body(self.node)
        elif name in ("attributes", "buffers", "opaque", "_stores"):
            fields = _read_methods(self.methods)
        elif name == "writing_methods":
            fields = {name: _find_writing_methods(self.methods, self._stores)}
        else:
            raise AttributeError(name)
        # Fields that were passed to the constructor take precedence.
        vars(self).update(fields | vars(self))
        return vars(self)[name]


def _read_class_body(node: ast.ClassDef) -> dict[str, Any]:
    methods: dict[str, Function | None] = {}
    defaults: Assigned = {}
    for name, binding in bindings(node.body):
        if isinstance(binding, Function):
            methods[name] = binding if name not in methods else None
        else:
            value = binding.value if isinstance(binding, (ast.Assign, ast.AnnAssign)) else None
            if isinstance(binding, ast.AnnAssign) and has_field_arguments(node):
                value = None  # the constructor replaces the default by its argument
            elif isinstance(binding, ast.AnnAssign) and value is None:
                continue  # `weight: Tensor` binds nothing
            defaults.setdefault(name, []).append(value)
    return {"methods": methods, "defaults": defaults}


def _read_methods(methods: Mapping[str, Function | None]) -> dict[str, Any]:
    read = _MethodAssignments()
    for method in methods.values():
        if method is not None and (instance_name := self_name(method)) is not None:
            _read_method(read, method, instance_name)
    return {"attributes": read.attributes, "buffers": read.buffers, "opaque": read.opaque, "_stores": read.stores}


def _find_writing_methods(methods: Mapping[str, Function | None], stores: set[str]) -> set[str]:
    """Return the methods that assign to `self`, or that call such a method.

    Args:
        methods: The methods of a class.
        stores: The methods that assign an attribute of `self` directly.
    """
    named = [
        (m, instance_name) for m in methods.values() if m is not None and (instance_name := self_name(m)) is not None
    ]
    writing = stores | {m.name for m, instance_name in named if instance_name in written_outer_names(m)}
    _add_callers_of_writers(methods, writing)
    return writing


@dataclass
class _MethodAssignments:
    """The attributes that the methods of a class assign to `self`."""

    attributes: Assigned = field(default_factory=dict)
    buffers: Assigned = field(default_factory=dict)
    opaque: bool = False
    stores: set[str] = field(default_factory=set)  # the methods that assign


@dataclass
class FileScope:
    """The names that code of one file sees, at module level or inside a function.

    Attributes:
        tree: The syntax tree of the file.
        qualified_names: Imported names and their full names: `F` -> `torch.nn.functional`.
        functions: Functions that the module defines once.
        classes: Classes that the module defines once.
        variables: Expressions of names that the module assigns once, at module level.
        bound: Every name that the module binds. Such a name hides a builtin.
        local: Names that the enclosing functions bind. Such a name hides a name of the module.
        file: The path of the file; None if other files of its project must not be read.
        doubtful_imports: Imported names that may not be bound when code runs.
        reassigned: Names that a function assigns after `global`.
        imports: Names that a single `from ... import` binds, with that statement.
        imported_classes: Imported names that were looked up, with the class and the scope of its file.
    """

    tree: ast.Module
    qualified_names: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ClassScope] = field(default_factory=dict)
    variables: dict[str, ast.expr] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    file: Path | None = None
    doubtful_imports: Mapping[str, ImportDoubt] = field(default_factory=dict)
    reassigned: frozenset[str] = frozenset()
    imports: dict[str, ast.ImportFrom] = field(default_factory=dict)
    imported_classes: dict[str, tuple[ClassScope, FileScope] | None] = field(default_factory=dict)
    _class_scopes: dict[int, ClassScope] = field(default_factory=dict)
    _inlinable: dict[int, bool] = field(default_factory=dict)
    _constants: dict[str, float] | None = None
    _indexes: dict[Callable[[ast.Module], Any], Any] = field(default_factory=dict)  # shared by the scopes of one file
    _cached: dict[Callable[[FileScope], Any], Any] = field(default_factory=dict, init=False)  # of this scope alone

    def index(self, make: Callable[[ast.Module], _T]) -> _T:
        """Return `make(tree)` for the tree of the file. The result is computed once for each file."""
        if make not in self._indexes:
            self._indexes[make] = make(self.tree)
        result: _T = self._indexes[make]
        return result

    def cached_for_scope(self, make: Callable[[FileScope], _T]) -> _T:
        """Return `make(scope)` for this scope. The result is computed once, and nested scopes do not share it."""
        if make not in self._cached:
            self._cached[make] = make(self)
        result: _T = self._cached[make]
        return result

    @cached_property
    def hides_names(self) -> bool:
        """Whether `from x import *` binds names that the text of the file does not show."""
        return has_unknown_star_imports(self.tree)

    def class_scope(self, node: ast.ClassDef) -> ClassScope:
        """Return the scope of a class that this file defines at any depth."""
        if id(node) not in self._class_scopes:
            self._class_scopes[id(node)] = ClassScope(node)
        return self._class_scopes[id(node)]

    def forget_others(self) -> None:
        """Forget the classes of other files, so that these files can be dropped."""
        self.imported_classes.clear()
        for owner in self._class_scopes.values():
            owner.known_subclasses.clear()

    def number(self, name: str) -> float | None:
        """Return the constant number that the file assigns to `name`, or None."""
        if self._constants is None:
            self._constants = named_constants(self.tree, self.qualified_names)
        return None if name in self.local else self._constants.get(name)

    def can_inline(self, function: Function) -> bool:
        """Whether a call of `function`, which this file defines, can be replaced by the body of the function."""
        if id(function) not in self._inlinable:
            self._inlinable[id(function)] = is_inlinable(function)
        return self._inlinable[id(function)]

    def attribute(self, owner: ClassScope | None, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to `self.name`, or None.

        Base classes in this file are searched too. None means that there is no assignment, or more than one.
        """
        return self._assigned_expression(owner, name, ("attributes", "defaults"))

    def assigned_to(self, owner: ClassScope | None, name: str) -> list[ast.expr]:
        """Return every expression that is assigned to `self.name`.

        The result is empty if several classes assign the attribute, or if an assignment is not known.
        """
        classes = list(self.lineage(owner))
        assigning = [c for c in classes if name in c.attributes or name in c.defaults or name in c.buffers]
        if len(assigning) != 1 or any(c.opaque for c in classes):
            return []
        only = assigning[0]
        if name in only.buffers:
            return []
        assigned = [*only.defaults.get(name, ()), *only.attributes.get(name, ())]
        return [e for e in assigned if e is not None] if None not in assigned else []

    def buffer(self, owner: ClassScope | None, name: str) -> ast.expr | None:
        """Return the expression that is registered as the buffer `name`; None if anything else is assigned to it."""
        if any(name in c.attributes for c in self.lineage(owner)):
            return None
        return self._assigned_expression(owner, name, ("buffers",))

    def _assigned_expression(self, owner: ClassScope | None, name: str, kinds: tuple[str, ...]) -> ast.expr | None:
        classes = list(self.lineage(owner))
        if any(c.opaque for c in classes):
            return None
        for kind in kinds:
            assigned = [e for c in classes for e in getattr(c, kind).get(name, ())]
            if assigned:
                return assigned[0] if len(assigned) == 1 else None
        return None

    def method(self, owner: ClassScope | None, name: str) -> Function | None:
        """Return the method `name` of a class or of its base classes in this file; None if an attribute hides it."""
        for c in self.lineage(owner):
            if name in c.attributes or name in c.defaults:
                return None
            if name in c.methods:
                return c.methods[name]
        return None

    def lineage(self, owner: ClassScope | None) -> Iterator[ClassScope]:
        """Yield a class and its base classes in this file, nearest first.

        The search ends at a base of another file, unless `_PLAIN_BASES` lists it: an unknown base may define anything.
        """
        seen: set[int] = set()
        todo = [owner] if owner else []
        while todo:
            c = todo.pop(0)
            if id(c) in seen:
                continue
            seen.add(id(c))
            yield c
            for base in c.node.bases:
                if isinstance(base, ast.Name) and base.id in self.classes:
                    todo.append(self.classes[base.id])
                elif not self._is_plain_base(base):
                    return

    def _is_plain_base(self, base: ast.expr) -> bool:
        """Whether a base of another file has known methods."""
        if isinstance(base, ast.Subscript):
            base = base.value
        return (self.name_of(base) or "").startswith(_PLAIN_BASES) or isinstance(base, ast.Name) and base.id == "object"

    def name_of(self, node: ast.expr) -> str | None:
        """Return the full name of an imported function or class: `F.softmax` -> `torch.nn.functional.softmax`."""
        if isinstance(node, ast.Name):
            return self.qualified_names.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.name_of(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def nested_scope(self, function: Function) -> FileScope:
        """Return the scope of functions nested in `function`. The names that it binds hide names of the module."""
        hidden, imported = bound_names(function), _import_meanings(function.body)
        return replace(
            self,
            qualified_names={k: v for k, v in self.qualified_names.items() if k not in hidden} | imported,
            functions={k: v for k, v in self.functions.items() if k not in hidden},
            classes={k: v for k, v in self.classes.items() if k not in hidden},
            imports={k: v for k, v in self.imports.items() if k not in hidden},
            variables={k: v for k, v in self.variables.items() if k not in hidden},
            doubtful_imports={
                **{k: v for k, v in self.doubtful_imports.items() if k not in hidden},
                **find_doubtful_imports(function.body),
            },
            bound=self.bound | hidden,
            local=self.local | (hidden - imported.keys()),
        )


def file_scope(tree: ast.Module, file: Path | None = None) -> FileScope:
    """Return the scope of a module.

    Args:
        tree: The syntax tree of the module.
        file: The path of the module. With a path, classes that it imports can be looked up in other files.
    """
    cache_walks(tree)
    scope = FileScope(tree, file=file)
    reassigned = {name for n in node_index(tree).of(ast.Global) for name in n.names}
    scope.reassigned = frozenset(reassigned)
    hidden = reassigned | names_bound_by_text(tree)
    module_level = scope.index(module_bindings)
    scope.qualified_names = {k: v for k, v in _agreed_meanings(module_level).items() if k not in hidden}
    scope.bound, scope.doubtful_imports = frozenset(module_level) | reassigned, find_doubtful_imports(tree.body)
    for name, nodes in module_level.items():
        if len(nodes) != 1 or name in reassigned:
            continue
        (node,) = nodes
        if isinstance(node, ast.ImportFrom):
            scope.imports[name] = node
        if isinstance(node, Function):
            scope.functions[name] = node
        elif isinstance(node, ast.ClassDef):
            scope.classes[name] = scope.class_scope(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            scope.variables[name] = node.value
            if alias := scope.name_of(node.value):  # softmax = F.softmax
                scope.qualified_names[name] = alias
    return scope


def module_bindings(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Return the names that a file binds at module level, with the nodes that bind each."""
    return _bindings(tree.body)


def _import_meanings(body: list[ast.stmt]) -> dict[str, str]:
    """Return the names that `body` imports, with their full names, where all bindings agree."""
    return _agreed_meanings(_bindings(body))


def _agreed_meanings(bound: Mapping[str, list[ast.AST]]) -> dict[str, str]:
    agreed = {}
    for name, nodes in bound.items():
        meanings = {_import_of(name, n) for n in nodes if not _is_none_assignment(n)}
        if len(meanings) == 1 and (meaning := meanings.pop()):
            agreed[name] = meaning
    return agreed


def _bindings(body: list[ast.stmt]) -> dict[str, list[ast.AST]]:
    nodes: dict[str, list[ast.AST]] = {}
    for name, node in bindings(body):
        nodes.setdefault(name, []).append(node)
    return nodes


def _import_of(name: str, node: ast.AST) -> str | None:
    if isinstance(node, ast.Import):
        for a in node.names:
            if (a.asname or a.name.partition(".")[0]) == name:
                return a.name if a.asname else a.name.partition(".")[0]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return next((f"{node.module}.{a.name}" for a in node.names if (a.asname or a.name) == name), None)
    return None


def _is_none_assignment(node: ast.AST) -> bool:
    """Whether `node` is `name = None`. This is how files handle a failed import."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None


def has_field_arguments(node: ast.ClassDef) -> bool:
    """Whether the annotated names of a class are arguments of its constructor, as in a dataclass."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    names = {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in (*decorators, *node.bases)}
    return not names.isdisjoint(_TAKE_FIELDS)


def _add_callers_of_writers(methods: Mapping[str, Function | None], writing: set[str]) -> None:
    """Add to `writing` the methods that call a method in `writing`, directly or through others."""
    calls = {
        m.name: {n.attr for n in walk(m) if isinstance(n, ast.Attribute) and _is_name(n.value, self_name(m) or "")}
        for m in methods.values()
        if m is not None and writing
    }
    while callers := {name for name, called in calls.items() if called & writing and name not in writing}:
        writing |= callers


def self_name(method: Function) -> str | None:
    """Return the parameter of a method that holds the instance, usually `self`; None for a static or class method."""
    static = any(isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod") for d in method.decorator_list)
    arguments = [*method.args.posonlyargs, *method.args.args]
    return arguments[0].arg if arguments and not static else None


def _read_method(read: _MethodAssignments, method: Function, instance: str) -> None:
    """Add the attributes that `method` assigns to `read`. `instance` is the name of its first parameter."""
    nodes = list(walk(method))
    for n in nodes:
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, (ast.Store, ast.Del)) and _is_name(n.value, instance):
            read.attributes.setdefault(n.attr, []).append(None)
            read.stores.add(method.name)
        elif isinstance(n, ast.Call):
            _read_call(read, n, instance)
    for n in nodes:
        if not isinstance(n, (ast.Assign, ast.AnnAssign)) or n.value is None:
            continue
        for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
            for t, value in target_pairs(target, n.value):
                if isinstance(t, ast.Attribute) and _is_name(t.value, instance):
                    # The first loop added None for this assignment. Here its value is known.
                    read.attributes[t.attr].remove(None)
                    read.attributes[t.attr].append(value)


def target_pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of an assignment with its value. `self.a, self.b = a, b` has two pairs."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            yield from target_pairs(t, v)
    else:
        yield target, value


def _read_call(read: _MethodAssignments, call: ast.Call, instance: str) -> None:
    """Add the attributes that a call sets: `setattr`, `register_buffer`, `add_module` and hooks."""
    function = call.func
    by_name = isinstance(function, ast.Name) and function.id in ("setattr", "delattr", "vars")
    if by_name and call.args and _is_name(call.args[0], instance):
        name = call.args[1] if len(call.args) > 1 else None
        if isinstance(name, ast.Constant):
            read.attributes.setdefault(str(name.value), []).append(None)
        else:
            read.opaque = True
    elif isinstance(function, ast.Attribute) and function.attr.endswith("_hook"):
        if isinstance(function.value, ast.Attribute) and _is_name(function.value.value, instance):
            # A submodule with a hook computes more than its class says, so its value counts as unknown.
            read.attributes.setdefault(function.value.attr, []).append(None)
    elif isinstance(function, ast.Attribute) and _is_name(function.value, instance):
        kind = {"register_buffer": read.buffers, "add_module": read.attributes, "register_module": read.attributes}
        if function.attr in kind and call.args and isinstance(call.args[0], ast.Constant):
            value = call.args[1] if len(call.args) > 1 else None
            kind[function.attr].setdefault(str(call.args[0].value), []).append(value)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@dataclass(frozen=True)
class DefinedFunction:
    """A function of a file.

    Attributes:
        symbol: The qualified name: `Attention.forward`.
        function: The definition.
        owner: The class, if the function is a method or is nested in a method.
        scope: The names that the function sees.
        instance_name: For a function nested in a method, the name of the instance in the enclosing method.
        module_parameters: Parameters that are modules, each with the expression that constructs the module.
    """

    symbol: str
    function: Function
    owner: ClassScope | None
    scope: FileScope
    instance_name: str | None = None
    module_parameters: tuple[tuple[str, ast.expr], ...] = ()


def functions(scope: FileScope) -> tuple[DefinedFunction, ...]:
    """Return every function of a file in the order of the text. Methods and nested functions are included."""
    return scope.cached_for_scope(_find_functions)


def _find_functions(scope: FileScope) -> tuple[DefinedFunction, ...]:

    def walk(
        body: list[ast.stmt], prefix: str, owner: ClassScope | None, scope: FileScope, instance_name: str | None = None
    ) -> Iterator[DefinedFunction]:
        for node in body:
            if isinstance(node, Function):
                yield DefinedFunction(prefix + node.name, node, owner, scope, instance_name)
                if _has_definitions(node):
                    inner = _instance_name_inside(node, owner, instance_name)
                    yield from walk(
                        node.body, f"{prefix}{node.name}.", owner if inner else None, scope.nested_scope(node), inner
                    )
            elif isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.", scope.class_scope(node), scope)
            else:
                for block in blocks_of(node):
                    yield from walk(block, prefix, owner, scope, instance_name)

    return tuple(walk(scope.tree.body, "", None, scope))


def _instance_name_inside(function: Function, owner: ClassScope | None, instance_name: str | None) -> str | None:
    """Return the name of the instance in functions nested in `function`; None if they cannot see the instance."""
    if instance_name is None and owner is not None:
        instance_name = self_name(function)
        return instance_name if instance_name not in {name for name, _ in bindings(function.body)} else None
    return instance_name if instance_name not in bound_names(function) else None


def _has_definitions(function: Function) -> bool:
    """Whether a function has functions or classes inside it."""
    return any(isinstance(n, (ast.ClassDef, Function)) for s in function.body for n in statements_in(s))


def statements_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and the statements inside it, without those of nested functions and classes."""
    todo = [statement]
    while todo:
        s = todo.pop()
        yield s
        if not isinstance(s, (ast.ClassDef, Function)):
            todo += [inner for block in blocks_of(s) for inner in block]


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks directly inside a compound statement, such as the branches of an `if`."""
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body
