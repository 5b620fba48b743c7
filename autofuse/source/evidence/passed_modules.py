"""Changes of torch through a value that a file passes on: `alias = torch; alias.softmax = f`, `replace(torch)`.

A module of torch, or its tensor class, is followed through assignments, loops, containers, arguments, returned values
and attributes of one file. An edit that reads a name that such a change may replace is not safe. The result of a call
of a library's function is not followed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope, self_name
from autofuse.source.capture.syntax import parts, walk
from autofuse.source.evidence.changes import find_changes

MODULES = ("torch", "torch.nn", "torch.nn.functional")
TENSOR = "torch.Tensor"
_ONLY_READ = frozenset(
    "hasattr isinstance issubclass dir help repr str print id len cast getattr vars getmembers setattr delattr object "
    "patch type reload signature getsource getfile getmodule callable bool update setdefault pop clear".split()
)
_DICT_METHODS = frozenset("update setdefault pop clear __setitem__ __delitem__ __ior__".split())
_OF_CLASS = frozenset({"__mro__", "__bases__", "__base__", "__dict__", "mro", "getmro"})
_IMPORTING = frozenset({"import_module", "__import__"})
_SAME_CONTENT = frozenset("values items enumerate zip list tuple set iter reversed sorted vars".split())
Held = frozenset[str]  # what a value may be or contain: of MODULES and TENSOR
_NOTHING: Held = frozenset()
_Key = tuple[int, str]  # a function, or 0 for the module and for attributes, and a name


@dataclass(frozen=True)
class PassedChange:
    """A statement or a call that may change torch through a passed value.

    Attributes:
        node: The statement, or the call.
        name: The changed attribute; None if it may be any.
        held: What may be changed.
    """

    node: ast.expr | ast.stmt
    name: str | None
    held: Held


def passed_changes(scope: FileScope) -> list[PassedChange]:
    """Return the changes of a file that may change torch through a passed value.

    A call of a function of another file that gets a module of torch may change anything in it.
    """
    values = _PassedValues(scope)
    found = list[PassedChange]()
    for c in scope.index(find_changes):
        held = values.held_by(c.receiver, c.function) if c.receiver is not None else _NOTHING
        if held and (c.name is not None or TENSOR not in held) and scope.name_of(c.receiver or c.node) is None:  # type: ignore[arg-type]
            found.append(PassedChange(c.node, c.name, held))
    return found + [PassedChange(call, None, held) for call, held in values.unknown_calls()]


class _PassedValues:
    """The names of one file that may hold a module of torch, or the tensor class."""

    def __init__(self, scope: FileScope) -> None:
        self._scope = scope
        self._held: defaultdict[_Key, Held] = defaultdict(frozenset)
        self._functions: defaultdict[str, list[Function]] = defaultdict(list)
        self._around: dict[int, Function | None] = {}
        self._locals: dict[int, frozenset[str]] = {}
        nodes = list(self._all_nodes())
        self._all_calls = [n for n in nodes if isinstance(n, ast.Call)]
        flows = [(f, self._around[id(n)]) for n in nodes for f in self._flows(n)]
        is_new = True
        while is_new:
            is_new = sum(self._flow(targets, value, around) for (targets, value), around in flows) > 0

    def _all_nodes(self) -> Iterator[ast.AST]:
        """Every node of the file, once the function around it is known."""
        todo: list[tuple[ast.AST, Function | None]] = [(self._scope.tree, None)]
        while todo:
            node, around = todo.pop()
            self._around[id(node)] = around
            yield node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions[node.name].append(node)
                around = node
            todo += [(child, around) for child in parts(node)]

    def _key(self, name: str, around: Function | None) -> _Key:
        if around is not None and id(around) not in self._locals:
            stored = {n.id for n in walk(around) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
            self._locals[id(around)] = frozenset(stored | {a.arg for a in walk(around.args) if isinstance(a, ast.arg)})
        return (id(around), name) if around is not None and name in self._locals[id(around)] else (0, name)

    def unknown_calls(self) -> Iterator[tuple[ast.Call, Held]]:
        """Yield the calls that pass a module of torch to a function that the file does not define."""
        for call in self._all_calls:
            function = _last_name(call.func)
            if function in _DICT_METHODS and isinstance(call.func, ast.Attribute):
                name, _, table = (self._scope.name_of(call.func.value) or "").rpartition(".")
                held = frozenset({name}) if table == "__dict__" and name in MODULES else _NOTHING
            elif self._is_unknown_function(call.func):
                held = frozenset(n for a in call.args if (n := self._scope.name_of(a)) in MODULES)
            else:
                continue
            if held:
                yield call, held

    def _is_unknown_function(self, function: ast.expr) -> bool:
        """Whether a function of another file of the project is called. A class, or a method, does not count."""
        last, name = _last_name(function), self._scope.name_of(function)
        if not last or last in _ONLY_READ | _SAME_CONTENT | _IMPORTING or self._functions[last] or last[:1].isupper():
            return False
        return isinstance(function, ast.Name) or name is not None and not name.startswith("torch.")

    def _flow(self, targets: list[_Key], value: ast.expr, around: Function | None) -> bool:
        """Mark the names that get a value. Returns whether one of them may hold something new."""
        held = self.held_by(value, around)
        new = [t for t in targets if held - self._held[t]] if held else []
        for t in new:
            self._held[t] |= held
        return bool(new)

    def held_by(self, node: ast.expr, around: Function | None) -> Held:
        """The modules and the class that an expression may be or contain."""
        name = self._scope.name_of(node)
        if name in MODULES or name == TENSOR:
            return frozenset({name})
        match node:
            case ast.Name(id=name):
                return self._held.get(self._key(name, around), _NOTHING)
            case ast.Attribute(value=value, attr=attr):
                return self._held.get((0, f".{attr}"), _NOTHING) | self._attribute(value, attr, around)
            case ast.Call():
                return self._call(node, around)
            case ast.Subscript(value=value, slice=index):
                named = isinstance(index, ast.Constant) and index.value in (*MODULES, TENSOR)
                return frozenset({str(index.value)}) if named else self.held_by(value, around)  # type: ignore[attr-defined]
            case ast.IfExp(body=body, orelse=other):
                return self.held_by(body, around) | self.held_by(other, around)
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | ast.BoolOp() | ast.Starred() | ast.NamedExpr():
                inside = (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr))
                return _NOTHING.union(*(self.held_by(n, around) for n in inside))
        return _NOTHING

    def _attribute(self, value: ast.expr, attr: str, around: Function | None) -> Held:
        if attr == "__class__" and not _is_self(value, around):
            return frozenset({TENSOR})
        held = self.held_by(value, around)
        if attr in _OF_CLASS:
            return held
        return frozenset(f for h in held if (f := f"{h}.{attr}") in MODULES or f == TENSOR)

    def _call(self, call: ast.Call, around: Function | None) -> Held:
        function, arguments = _last_name(call.func), call.args
        first = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else None
        if function in _IMPORTING:
            return frozenset({str(first)}) if first in MODULES else _NOTHING
        if function == "type" and len(arguments) == 1:
            return _NOTHING if _is_self(arguments[0], around) else frozenset({TENSOR})
        if function == "getattr" and len(arguments) > 1 and isinstance(arguments[1], ast.Constant):
            return self._attribute(arguments[0], str(arguments[1].value), around)
        if function in _SAME_CONTENT | _OF_CLASS:
            owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
            return _NOTHING.union(*(self.held_by(a, around) for a in (*owner, *arguments)))
        return self._held.get((0, f"{function}()"), _NOTHING)

    def _flows(self, n: ast.AST) -> Iterator[tuple[list[_Key], ast.expr]]:
        """The names that a node gives a value to, and the value."""
        around = self._around[id(n)]
        match n:
            case ast.Assign(targets=targets, value=value):
                yield [key for t in targets for key in self._targets(t, around)], value
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield self._targets(target, around), value
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                yield self._targets(target, around), value
            case ast.comprehension(target=target, iter=value):
                yield self._targets(target, around), value
            case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
                yield self._targets(target, around), value
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (([self._key(a, n)], d) for a, d in _defaults(n.args))
            case ast.Return(value=ast.expr() as value) if around is not None:
                yield [(0, f"{around.name}()")], value
            case ast.Call():
                yield from self._argument_flows(n)

    def _argument_flows(self, call: ast.Call) -> Iterator[tuple[list[_Key], ast.expr]]:
        for f in self._functions[_last_name(call.func)]:
            names = [a.arg for a in (*f.args.posonlyargs, *f.args.args)]
            skips = bool(names) and names[0] in ("self", "cls")
            for name, argument in zip(names[skips:], call.args, strict=False):
                yield [self._key(name, f)], argument
            yield from (([self._key(k.arg, f)], k.value) for k in call.keywords if k.arg is not None)
        yield from (([(0, f".{k.arg}")], k.value) for k in call.keywords if k.arg is not None)

    def _targets(self, target: ast.expr, around: Function | None) -> list[_Key]:
        """The names and attributes that a target assigns: `a`, `self.a`, `a[0]`, `a, b`."""
        match target:
            case ast.Name(id=name):
                return [self._key(name, around), (0, f".{name}")] if around is None else [self._key(name, around)]
            case ast.Attribute(attr=name):
                return [(0, f".{name}")]
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self._targets(value, around)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return [key for e in elements for key in self._targets(e, around)]
        return []


def _is_self(node: ast.expr, around: Function | None) -> bool:
    name = self_name(around) if around is not None else None
    return isinstance(node, ast.Name) and node.id in (name, "self", "cls")


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    yield from ((a.arg, d) for a, d in zip(positional[::-1], arguments.defaults[::-1], strict=False))
    yield from ((a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None)
