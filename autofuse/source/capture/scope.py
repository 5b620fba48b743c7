"""What the names of a file mean: imports, helper functions, classes and what their methods assign to `self`.

A name means something only where everything that binds it agrees: `torch` that is also assigned, or a helper that is
defined twice, means nothing. Knows one file's syntax tree (binding.py reads it). Knows nothing of graphs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from autofuse.source.capture.bindings import Function, bindings, bound_names
from autofuse.source.capture.constants import constants_of
from autofuse.source.capture.helpers import inlinable
from autofuse.source.capture.lasting_imports import Doubt, bound_by_name, doubts, star_modules
from autofuse.source.capture.syntax import lay_out, walk
from autofuse.source.capture.writes import written_roots

_T = TypeVar("_T")
_PLAIN_BASES = ("torch.nn.", "torch.autograd.", "abc.", "typing.")

_TAKE_FIELDS = frozenset("dataclass define attrs s mutable frozen NamedTuple BaseModel Struct".split())


Assigned = dict[str, list[ast.expr | None]]


@dataclass(init=False, eq=False)
class ClassScope:
    """A class and what its methods assign to `self`; None stands for what no single expression gives.

    Most classes of a file are asked for their bases at most, so the rest is read when it is asked for.
    """

    node: ast.ClassDef
    attributes: Assigned
    defaults: Assigned  # assigned in the class body
    buffers: Assigned
    methods: dict[str, Function | None]
    writes: set[str]  # methods that assign to `self`, or call one that does
    opaque: bool  # attributes are set by computed names
    below: dict[tuple[ast.Module, ...], Any]  # its subclasses, by the files searched

    def __init__(self, node: ast.ClassDef, **known: Any) -> None:
        """`known` are fields that are not to be read from `node`."""
        vars(self).update({"below": {}} | known, node=node)

    def __getattr__(self, name: str) -> Any:
        """A field that was not asked for before."""
        if name in ("methods", "defaults"):
            found = _in_body(self.node)
        elif name in ("attributes", "buffers", "opaque", "_stores"):
            found = _by_methods(self.methods)
        elif name == "writes":
            found = {name: _writing(self.methods, self._stores)}
        else:
            raise AttributeError(name)
        vars(self).update(found | vars(self))
        return vars(self)[name]


def _in_body(node: ast.ClassDef) -> dict[str, Any]:
    methods: dict[str, Function | None] = {}
    defaults: Assigned = {}
    for name, at in bindings(node.body):
        if isinstance(at, Function):
            methods[name] = at if name not in methods else None
        else:
            value = at.value if isinstance(at, (ast.Assign, ast.AnnAssign)) else None
            if isinstance(at, ast.AnnAssign) and fields_are_arguments(node):
                value = None  # what the constructor is given comes in its place
            defaults.setdefault(name, []).append(value)
    return {"methods": methods, "defaults": defaults}


def _by_methods(methods: Mapping[str, Function | None]) -> dict[str, Any]:
    found = _ByMethods()
    for method in methods.values():
        if method is not None and (me := self_name(method)) is not None:
            _read_method(found, method, me)
    return {
        "attributes": found.attributes, "buffers": found.buffers, "opaque": found.opaque, "_stores": found.stores
    }  # fmt: skip


def _writing(methods: Mapping[str, Function | None], stores: set[str]) -> set[str]:
    """The methods that assign to `self`, or call one that does."""
    named = [(m, me) for m in methods.values() if m is not None and (me := self_name(m)) is not None]
    writing = stores | {m.name for m, me in named if me in written_roots(m)}
    _pass_on_writes(methods, writing)
    return writing


@dataclass
class _ByMethods:
    """What the methods of a class assign to `self`, and which of them do."""

    attributes: Assigned = field(default_factory=dict)
    buffers: Assigned = field(default_factory=dict)
    opaque: bool = False
    stores: set[str] = field(default_factory=set)


@dataclass
class FileScope:
    """`qualified` maps names of the module to what they were imported as."""

    tree: ast.Module
    qualified: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ClassScope] = field(default_factory=dict)
    variables: dict[str, ast.expr] = field(default_factory=dict)  # assigned once, at module level
    bound: frozenset[str] = frozenset()  # every name that the module binds, and so hides a builtin
    local: frozenset[str] = frozenset()  # names of the functions around, whatever the module calls so
    file: Path | None = None  # where it stands, if other files of its project may be asked
    doubtful: Mapping[str, Doubt] = field(default_factory=dict)  # imported names that may not be bound when code runs
    reassigned: frozenset[str] = frozenset()  # names that some function assigns: `global step`
    imports: dict[str, ast.ImportFrom] = field(default_factory=dict)  # names and the one import that binds each
    elsewhere: dict[str, tuple[ClassScope, FileScope] | None] = field(default_factory=dict)  # classes so imported
    _class_scopes: dict[int, ClassScope] = field(default_factory=dict)
    _straight: dict[int, bool] = field(default_factory=dict)
    _constants: dict[str, float] | None = None
    _indexes: dict[Callable[[ast.Module], Any], Any] = field(default_factory=dict)  # shared by the scopes of one file
    _derived: dict[Callable[[FileScope], Any], Any] = field(default_factory=dict, init=False)  # of this scope alone

    def index(self, make: Callable[[ast.Module], _T]) -> _T:
        """What `make` finds in the file's tree. It is found once per file, whichever function asks for it."""
        if make not in self._indexes:
            self._indexes[make] = make(self.tree)
        found: _T = self._indexes[make]
        return found

    def derived(self, make: Callable[[FileScope], _T]) -> _T:
        """What `make` finds in this scope. It is found once, and not taken over by the scopes inside of it."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: _T = self._derived[make]
        return found

    @cached_property
    def hides_names(self) -> bool:
        """Whether the file binds names that its text does not show, by `from x import *`."""
        return star_modules(self.tree)

    def class_scope(self, node: ast.ClassDef) -> ClassScope:
        """What is known of a class of this file, wherever it is defined."""
        if id(node) not in self._class_scopes:
            self._class_scopes[id(node)] = ClassScope(node)
        return self._class_scopes[id(node)]

    def number(self, name: str) -> float | None:
        """The number that the file gives the name `name`, once and for all."""
        if self._constants is None:
            self._constants = constants_of(self.tree, self.qualified)
        return None if name in self.local else self._constants.get(name)

    def helper(self, function: Function) -> bool:
        """Whether a function of this file may be read as if written where it is called."""
        if id(function) not in self._straight:
            self._straight[id(function)] = inlinable(function)
        return self._straight[id(function)]

    def attribute(self, owner: ClassScope | None, name: str) -> ast.expr | None:
        """The one expression assigned to `self.name`, looked up through bases in this file; None if several or none."""
        return self._assigned(owner, name, ("attributes", "defaults"))

    def assigned_to(self, owner: ClassScope | None, name: str) -> list[ast.expr]:
        """All that is assigned to `self.name`, where one class of this file does that and nothing is hidden."""
        classes = list(self.lineage(owner))
        assigning = [c for c in classes if name in c.attributes or name in c.defaults or name in c.buffers]
        if len(assigning) != 1 or any(c.opaque for c in classes):
            return []
        only = assigning[0]
        if name in only.buffers:
            return []
        found = [*only.defaults.get(name, ()), *only.attributes.get(name, ())]
        return [e for e in found if e is not None] if None not in found else []

    def buffer(self, owner: ClassScope | None, name: str) -> ast.expr | None:
        """The tensor registered as the buffer `name`, if nothing else is ever assigned to it."""
        if any(name in c.attributes for c in self.lineage(owner)):
            return None
        return self._assigned(owner, name, ("buffers",))

    def _assigned(self, owner: ClassScope | None, name: str, kinds: tuple[str, ...]) -> ast.expr | None:
        classes = list(self.lineage(owner))
        if any(c.opaque for c in classes):
            return None
        for kind in kinds:
            found = [e for c in classes for e in getattr(c, kind).get(name, ())]
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def method(self, owner: ClassScope | None, name: str) -> Function | None:
        """The method `name` of a class, looked up through bases in this file."""
        for c in self.lineage(owner):
            if name in c.attributes or name in c.defaults:
                return None
            if name in c.methods:
                return c.methods[name]
        return None

    def lineage(self, owner: ClassScope | None) -> Iterator[ClassScope]:
        """A class and its bases in this file, the nearest first, up to a base that is not known to be plain."""
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
                elif not self._plain(base):
                    return

    def _plain(self, base: ast.expr) -> bool:
        """Whether a base outside this file is one whose methods are not mistaken for the class's own."""
        if isinstance(base, ast.Subscript):
            base = base.value
        return (self.name_of(base) or "").startswith(_PLAIN_BASES) or isinstance(base, ast.Name) and base.id == "object"

    def name_of(self, node: ast.expr) -> str | None:
        """The qualified name that an expression at module level denotes: `F.softmax` -> torch.nn.functional.softmax."""
        if isinstance(node, ast.Name):
            return self.qualified.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.name_of(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def within(self, function: Function) -> FileScope:
        """The scope that functions nested in `function` see: what it binds hides what the module binds."""
        hidden, imported = bound_names(function), _imported(function.body)
        return replace(
            self,
            qualified={k: v for k, v in self.qualified.items() if k not in hidden} | imported,
            functions={k: v for k, v in self.functions.items() if k not in hidden},
            classes={k: v for k, v in self.classes.items() if k not in hidden},
            imports={k: v for k, v in self.imports.items() if k not in hidden},
            variables={k: v for k, v in self.variables.items() if k not in hidden},
            doubtful={**{k: v for k, v in self.doubtful.items() if k not in hidden}, **doubts(function.body)},
            bound=self.bound | hidden,
            local=self.local | (hidden - imported.keys()),
        )


def file_scope(tree: ast.Module, file: Path | None = None) -> FileScope:
    """The scope of a whole file, which stands at `file` where others of its project may be asked."""
    lay_out(tree)
    scope = FileScope(tree, file=file)
    reassigned = {name for n in walk(tree) if n.__class__ is ast.Global for name in n.names}
    scope.reassigned = frozenset(reassigned)
    hidden = reassigned | bound_by_name(tree)
    module_level = scope.index(module_bindings)
    scope.qualified = {k: v for k, v in _meanings(module_level).items() if k not in hidden}
    scope.bound, scope.doubtful = frozenset(module_level) | reassigned, doubts(tree.body)
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
                scope.qualified[name] = alias
    return scope


def module_bindings(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Each name that a file binds at its top level, with what does."""
    return _bindings(tree.body)


def _imported(body: list[ast.stmt]) -> dict[str, str]:
    """Names that every binding in `body` gives one imported meaning."""
    return _meanings(_bindings(body))


def _meanings(bound: Mapping[str, list[ast.AST]]) -> dict[str, str]:
    found = {}
    for name, nodes in bound.items():
        meanings = {_import_of(name, n) for n in nodes if not _is_missing(n)}
        if len(meanings) == 1 and (meaning := meanings.pop()):
            found[name] = meaning
    return found


def _bindings(body: list[ast.stmt]) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for name, node in bindings(body):
        found.setdefault(name, []).append(node)
    return found


def _import_of(name: str, node: ast.AST) -> str | None:
    if isinstance(node, ast.Import):
        for a in node.names:
            if (a.asname or a.name.partition(".")[0]) == name:
                return a.name if a.asname else a.name.partition(".")[0]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return next((f"{node.module}.{a.name}" for a in node.names if (a.asname or a.name) == name), None)
    return None


def _is_missing(node: ast.AST) -> bool:
    """`name = None`, where an import failed."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None


def fields_are_arguments(node: ast.ClassDef) -> bool:
    """Whether the annotated names of a class are arguments of its constructor, as in a dataclass."""
    made = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    names = {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in (*made, *node.bases)}
    return not names.isdisjoint(_TAKE_FIELDS)


def _pass_on_writes(methods: Mapping[str, Function | None], writing: set[str]) -> None:
    """A method that calls one that writes, writes too."""
    calls = {
        m.name: {n.attr for n in walk(m) if isinstance(n, ast.Attribute) and _is_name(n.value, self_name(m) or "")}
        for m in methods.values()
        if m is not None and writing
    }
    while more := {name for name, called in calls.items() if called & writing and name not in writing}:
        writing |= more


def self_name(method: Function) -> str | None:
    """What a method calls the instance."""
    static = any(isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod") for d in method.decorator_list)
    arguments = [*method.args.posonlyargs, *method.args.args]
    return arguments[0].arg if arguments and not static else None


def _read_method(scope: _ByMethods, method: Function, me: str) -> None:
    nodes = list(walk(method))
    for n in nodes:
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, (ast.Store, ast.Del)) and _is_name(n.value, me):
            scope.attributes.setdefault(n.attr, []).append(None)
            scope.stores.add(method.name)
        elif isinstance(n, ast.Call):
            _read_call(scope, n, me)
    for n in nodes:
        if not isinstance(n, (ast.Assign, ast.AnnAssign)) or n.value is None:
            continue
        for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
            for t, value in target_pairs(target, n.value):
                if isinstance(t, ast.Attribute) and _is_name(t.value, me):  # the store counted above has this value
                    scope.attributes[t.attr].remove(None)
                    scope.attributes[t.attr].append(value)


def target_pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target and what it is given: `self.a, self.b = a, b` are two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            yield from target_pairs(t, v)
    else:
        yield target, value


def _read_call(scope: _ByMethods, call: ast.Call, me: str) -> None:
    function = call.func
    by_name = isinstance(function, ast.Name) and function.id in ("setattr", "delattr", "vars")
    if by_name and call.args and _is_name(call.args[0], me):
        name = call.args[1] if len(call.args) > 1 else None
        if isinstance(name, ast.Constant):
            scope.attributes.setdefault(str(name.value), []).append(None)
        else:
            scope.opaque = True
    elif isinstance(function, ast.Attribute) and function.attr.endswith("_hook"):
        if isinstance(function.value, ast.Attribute) and _is_name(function.value.value, me):
            scope.attributes.setdefault(function.value.attr, []).append(None)  # a child with a hook does more
    elif isinstance(function, ast.Attribute) and _is_name(function.value, me):
        kind = {"register_buffer": scope.buffers, "add_module": scope.attributes, "register_module": scope.attributes}
        if function.attr in kind and call.args and isinstance(call.args[0], ast.Constant):
            value = call.args[1] if len(call.args) > 1 else None
            kind[function.attr].setdefault(str(call.args[0].value), []).append(value)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@dataclass(frozen=True)
class Defined:
    """A function of a file: its qualified name, the class it is a method of, and the scope it sees.

    `me` is what a function inside a method calls the instance, which it takes from around it. `given` are parameters
    that are modules, and what makes them.
    """

    symbol: str
    function: Function
    owner: ClassScope | None
    scope: FileScope
    me: str | None = None
    given: tuple[tuple[str, ast.expr], ...] = ()


def functions(scope: FileScope) -> Iterator[Defined]:
    """Every function of a file, methods and nested ones included, in the order of the text."""

    def walk(
        body: list[ast.stmt], prefix: str, owner: ClassScope | None, scope: FileScope, me: str | None = None
    ) -> Iterator[Defined]:
        for node in body:
            if isinstance(node, Function):
                yield Defined(prefix + node.name, node, owner, scope, me)
                if _defines(node):
                    inner = _instance_inside(node, owner, me)
                    yield from walk(
                        node.body, f"{prefix}{node.name}.", owner if inner else None, scope.within(node), inner
                    )
            elif isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.", scope.class_scope(node), scope)
            else:
                for block in blocks_of(node):
                    yield from walk(block, prefix, owner, scope, me)

    yield from walk(scope.tree.body, "", None, scope)


def _instance_inside(function: Function, owner: ClassScope | None, me: str | None) -> str | None:
    """What functions inside `function` call the instance; None where they see none."""
    if me is None and owner is not None:
        me = self_name(function)
        return me if me not in {name for name, _ in bindings(function.body)} else None
    return me if me not in bound_names(function) else None


def _defines(function: Function) -> bool:
    """Whether a function has functions or classes inside it."""
    return any(isinstance(n, (ast.ClassDef, Function)) for s in function.body for n in statements_in(s))


def statements_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those inside it, not those of the functions it defines."""
    todo = [statement]
    while todo:
        s = todo.pop()
        yield s
        if not isinstance(s, (ast.ClassDef, Function)):
            todo += [inner for block in blocks_of(s) for inner in block]


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks directly inside a compound statement that is no definition."""
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body
