"""Finds what the calls of a file pass to the arguments of a function: `Swish()(torch.arange(8))` passes integers.

If a caller passes its own argument, the search goes on with the callers of that caller. Only calls in the same file
count.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, IndexedCall, call_index, called_name, decorated_name
from autofuse.source.capture.scope import DefinedFunction, FileScope, file_scope, target_pairs
from autofuse.source.capture.syntax import children, walk
from autofuse.source.evidence.tensor_expressions import Sizes, TensorFacts, TensorReader

MAX_CALLS = 64  # of one function
_MAX_DEPTH = 4  # how many callers an argument is followed through
# Handlers for these catch the errors that torch raises for operands that do not fit.
_ERRORS = frozenset("RuntimeError IndexError TypeError ValueError NotImplementedError Exception BaseException".split())
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_INDEXING = frozenset(
    "embedding one_hot embedding_bag bincount index_select gather take take_along_dim scatter".split()
)


@dataclass(frozen=True, eq=False)
class BoundCall:
    """A call, with its expressions bound to the arguments of the function.

    Attributes:
        call: The call.
        arguments: For each argument: the expressions that may be its value.
        scopes: The module, classes and functions around the call, the outermost first.
    """

    call: ast.Call
    arguments: dict[str, list[ast.expr]]
    scopes: tuple[ast.AST, ...]

    @property
    def text(self) -> str:
        return ast.unparse(self.call).splitlines()[0]


class CallArguments:
    """The calls of one file. `scope.index(CallArguments)` creates one object for each file and keeps it."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree, self._calls = tree, call_index(tree)
        self._scope: FileScope | None = None
        self._bindings_of_scope: dict[int, dict[str, list[tuple[int, ast.expr | None, bool]]]] = {}
        self._attribute_cache: defaultdict[str, list[ast.expr]] | None = None
        self._owner_names = self._calls.method_classes
        self._index_cache: dict[int, list[ast.Name]] = {}

    @property
    def scope(self) -> FileScope:
        if self._scope is None:
            self._scope = file_scope(self._tree)
        return self._scope

    def calls_of(self, d: DefinedFunction) -> list[BoundCall]:
        """Returns the calls in the file of a function, a method or a module's forward."""
        return self._calls_of(d.function, d.owner.node.name if d.owner is not None and d.instance_name is None else "")

    def is_called_in_try(self, d: DefinedFunction) -> bool:
        """Whether a call in the file catches errors of the function. Its operands are then not known to be valid."""
        owner = d.owner.node.name if d.owner is not None and d.instance_name is None else ""
        name = owner if owner and d.function.name in FORWARD else d.function.name
        calls = (c for n in self._calls.aliases_of([name, decorated_name(d.function)]) for c in self._calls.calls_of(n))
        return any(id(c.node) in self._calls_in_try for c in calls)

    def may_be_called_in_try(self, d: DefinedFunction) -> bool:
        """Like `is_called_in_try`. A forward is also called through objects: `model(x)`, `self.net(x)`."""
        is_forward = d.owner is not None and d.function.name in FORWARD
        return self.is_called_in_try(d) or is_forward and self._calls_object_in_try

    @cached_property
    def _calls_object_in_try(self) -> bool:
        """Whether a `try` block that catches errors of torch calls a variable, an argument or an attribute of self."""
        defined = {n.name for n in walk(self._tree) if isinstance(n, (Function, ast.ClassDef))}
        called = (n for n in walk(self._tree) if isinstance(n, ast.Call) and id(n) in self._calls_in_try)
        return any(_may_be_module(n.func, defined | self.scope.qualified_names.keys()) for n in called)

    @cached_property
    def _calls_in_try(self) -> frozenset[int]:
        """The ids of the calls in a `try` block, or in `with suppress(...)`, that catches errors of torch."""
        blocks: list[ast.stmt] = []
        for n in walk(self._tree):
            if isinstance(n, ast.Try) and any(_catches_torch_errors(h.type) for h in n.handlers):
                blocks += n.body
            elif isinstance(n, (ast.With, ast.AsyncWith)):
                calls = (i.context_expr for i in n.items if isinstance(i.context_expr, ast.Call))
                if any(_last_name(c.func) == "suppress" and any(map(_catches_torch_errors, c.args)) for c in calls):
                    blocks += n.body
        return frozenset(id(n) for s in blocks for n in walk(s) if isinstance(n, ast.Call))

    def calls_of_objects(self, d: DefinedFunction) -> list[BoundCall]:
        """Returns the calls of variables, arguments and attributes of self that may be the module of a forward."""
        if d.owner is None or d.function.name not in FORWARD:
            return []
        own = {id(c.call) for c in self.calls_of(d)}
        known = {n.name for n in walk(self._tree) if isinstance(n, (Function, ast.ClassDef))}
        known |= self.scope.qualified_names.keys()
        calls = (c for found in list(self._calls.calls.values()) for c in found if id(c.node) not in own)
        objects = [c for c in calls if c.argument_offset is None and _may_be_module(c.node.func, known)]
        return [call for c in objects[:MAX_CALLS] if (call := _bind_call(c, d.function, skip=True)) is not None]

    def constructor_calls(self, owner: str, init: Function) -> list[BoundCall]:
        """Returns the calls that create an instance of a class, bound to the arguments of its constructor."""
        calls = (c for name in self._calls.aliases_of([owner]) for c in self._calls.constructor_calls(name))
        return [call for c in list(calls)[:MAX_CALLS] if (call := _bind_call(c, init, skip=True)) is not None]

    def _calls_of(self, function: Function, owner: str) -> list[BoundCall]:
        name = owner if owner and function.name in FORWARD else function.name
        calls, seen = list[BoundCall](), set[int]()
        for called in self._calls.aliases_of([name, decorated_name(function)]):
            for indexed_call in self._calls.calls_of(called):
                spend()
                if id(indexed_call.node) in seen or len(calls) > MAX_CALLS or function in indexed_call.scopes[-1:]:
                    continue
                if (call := _bind_call(indexed_call, function, skip=bool(owner))) is not None:
                    seen.add(id(indexed_call.node))
                    calls.append(call)
        return calls

    def passed_values(self, call: BoundCall, argument: str, depth: int = _MAX_DEPTH) -> list[TensorFacts]:
        """Returns what a call passes to an argument, as far as the text shows how it is created."""
        return [
            m for e in call.arguments.get(argument, ()) if (m := self._read_value(e, call.scopes, depth)) is not None
        ]

    def argument_sizes(self, d: DefinedFunction, argument: str) -> list[Sizes]:
        """Returns the shapes that all calls in the file pass to an argument; nothing if one call does not show it."""
        shapes = list[Sizes]()
        for call in self.calls_of(d):
            expressions = call.arguments.get(argument, [])
            passed = [self._read_argument(e, call) for e in expressions if self._has_one_value(e, call.scopes)]
            sizes = [m.sizes for m in passed if m is not None and m.sizes is not None and not m.number]
            if not sizes or len(sizes) != len(expressions):
                return []
            shapes += sizes
        return shapes

    def _read_argument(self, node: ast.expr, call: BoundCall) -> TensorFacts | None:
        return self._read_value(node, call.scopes, _MAX_DEPTH)

    def _has_one_value(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int = _MAX_DEPTH) -> bool:
        """Whether an expression has only one value: each name in it is assigned once, and is no argument."""
        for n in walk(node):
            if isinstance(n, ast.Attribute) and self._attribute_values()[n.attr]:
                return False
            if isinstance(n, ast.Name):
                bindings = [b for s in scopes for b in self._bindings(s).get(n.id, ())]
                is_argument = any(isinstance(s, Function) and n.id in _argument_names(s) for s in scopes)
                if is_argument or len(bindings) > 1 or depth == 0:
                    return False
                for _, value, is_iterated in bindings:
                    if value is None or is_iterated or not self._has_one_value(value, scopes, depth - 1):
                        return False
        return True

    def _read_value(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> TensorFacts | None:
        return TensorReader(self.scope, lambda n: self._possible_values(n, scopes, depth)).read(node)

    def _possible_values(
        self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int
    ) -> Iterator[ast.expr | TensorFacts]:
        spend()
        if isinstance(node, ast.Attribute):
            yield from self._attribute_values()[node.attr][:4]
            return
        if not isinstance(node, ast.Name):
            return
        for scope in reversed(scopes):
            values = self._last_assigned(node, scope)
            if values is not None:
                yield from values
                return
            if isinstance(scope, Function) and node.id in _argument_names(scope):
                yield from self._values_from_callers(scope, node.id, depth - 1)
                return

    def _values_from_callers(self, function: Function, argument: str, depth: int) -> Iterator[TensorFacts]:
        """Yields what callers pass to an argument of a function around the expression."""
        for call in self._calls_of(function, self._owner_names.get(function, "")) if depth > 0 else ():
            yield from self.passed_values(call, argument, depth)

    def _last_assigned(self, node: ast.Name, scope: ast.AST) -> list[ast.expr] | None:
        """Returns the values of the last assignment before the line of `node`; None if the scope has none."""
        bound = self._bindings(scope).get(node.id, [])
        before = [b for b in bound if b[0] <= node.lineno] if isinstance(scope, Function) else bound
        if not before:
            return None
        last = max(b[0] for b in before)
        # A function runs from top to bottom, so its last binding counts. Module code may run in any order.
        values = [(v, each) for line, v, each in before if line == last or not isinstance(scope, Function)]
        return [e for v, each in values if v is not None for e in (_elements(v) if each else [v])]

    def _bindings(self, scope: ast.AST) -> dict[str, list[tuple[int, ast.expr | None, bool]]]:
        """Returns the bindings of one scope, by name.

        A binding is a line, a value, and whether the name is bound to each element of the value in turn.
        """
        if id(scope) not in self._bindings_of_scope:
            bindings: defaultdict[str, list[tuple[int, ast.expr | None, bool]]] = defaultdict(list)
            todo: list[ast.AST] = list(getattr(scope, "body", ()))
            while todo:
                n = todo.pop()
                if isinstance(n, ast.Assign):
                    for t in n.targets:
                        _add_bindings(bindings, t, n.value, False, n.lineno)
                elif isinstance(n, (ast.AnnAssign, ast.NamedExpr)):
                    _add_bindings(bindings, n.target, n.value, False, n.lineno)
                elif isinstance(n, ast.AugAssign):
                    _add_bindings(bindings, n.target, None, False, n.lineno)
                elif isinstance(n, (ast.For, ast.AsyncFor)):
                    _add_bindings(bindings, n.target, n.iter, True, n.lineno)
                elif isinstance(n, _COMPREHENSIONS):
                    for c in n.generators:
                        _add_bindings(bindings, c.target, c.iter, True, n.lineno)
                if not isinstance(n, (Function, ast.ClassDef)):
                    todo += children(n)
            self._bindings_of_scope[id(scope)] = dict(bindings)
        return self._bindings_of_scope[id(scope)]

    def _attribute_values(self) -> defaultdict[str, list[ast.expr]]:
        if self._attribute_cache is None:
            self._attribute_cache = defaultdict(list)
            assigned = ((t, n.value) for n in walk(self._tree) if isinstance(n, ast.Assign) for t in n.targets)
            for target, value in (pair for t, v in assigned for pair in target_pairs(t, v)):
                if isinstance(target, ast.Attribute):
                    self._attribute_cache[target.attr].append(value)
        return self._attribute_cache

    def is_index(self, call: BoundCall, argument: str, depth: int = _MAX_DEPTH) -> bool:
        """Whether the caller also uses as an index what it passes to the argument."""
        return any(self._is_index(e, call.scopes, depth) for e in call.arguments.get(argument, ()))

    def _is_index(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> bool:
        name = _underlying_name(node)
        if name is None or not scopes or depth == 0:
            return False
        function = scopes[-1]
        if any(n.id == name.id and self._has_same_value(n, name, function) for n in self.indices(function)):
            return True
        if self._last_assigned(name, function) is None and isinstance(function, Function):
            calls = self._calls_of(function, self._owner_names.get(function, ""))
            return name.id in _argument_names(function) and any(self.is_index(g, name.id, depth - 1) for g in calls)
        return False

    def is_own_index(self, function: Function, argument: str) -> bool:
        """Whether a function uses its argument as an index."""
        return any(n.id == argument and self._last_assigned(n, function) is None for n in self.indices(function))

    def _has_same_value(self, first: ast.Name, second: ast.Name, function: ast.AST) -> bool:
        a, b = self._last_assigned(first, function), self._last_assigned(second, function)
        return a is b is None or a is not None and b is not None and [*map(id, a)] == [*map(id, b)]

    def indices(self, function: ast.AST, depth: int = _MAX_DEPTH) -> list[ast.Name]:
        """Returns the names that a function uses as an index: in a subscript, an embedding, a gather."""
        if id(function) not in self._index_cache:
            self._index_cache[id(function)] = []  # stops at a recursive call
            expressions = [expression for n in walk(function) for expression in self._index_expressions(n, depth)]
            self._index_cache[id(function)] = [
                n for expression in expressions if (n := _underlying_name(expression)) is not None
            ]
        return self._index_cache[id(function)]

    def _index_expressions(self, n: ast.AST, depth: int) -> Iterator[ast.expr]:
        if isinstance(n, ast.Subscript):
            yield from (
                p for p in (n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]) if _underlying_name(p)
            )
        if not isinstance(n, ast.Call):
            return
        name = called_name(n.func)
        constructors = [v.func for v in self._attribute_values()[name] if isinstance(v, ast.Call)]
        constructors += [v.func for v in self._module_values(name) if isinstance(v, ast.Call)]
        if any(_last_name(f) in ("Embedding", "EmbeddingBag") for f in constructors) or name in (
            "embedding",
            "one_hot",
        ):
            yield from n.args[:1]
        elif name in _INDEXING:
            yield from n.args
        elif name in self._calls.functions_by_name and depth > 0:
            for function in self._calls.functions_by_name[name]:
                arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
                arguments = arguments[1:] if function in self._owner_names else arguments
                index_names = {i.id for i in self.indices(function, depth - 1)}
                yield from (a for p, a in zip(arguments, n.args, strict=False) if p in index_names)

    def _module_values(self, name: str) -> Iterator[ast.expr]:
        return (v for _, v, each in self._bindings(self._tree).get(name, ()) if v is not None and not each)


def _bind_call(indexed_call: IndexedCall, function: Function, skip: bool) -> BoundCall | None:
    """Binds the expressions of a call to the arguments of `function`; None if it passes none.

    `skip` leaves out the first argument, `self`.
    """
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][skip:]
    star_argument = function.args.vararg.arg if function.args.vararg is not None else None
    positional = indexed_call.node.args[indexed_call.argument_offset or 0 :]
    bound: defaultdict[str, list[ast.expr]] = defaultdict(list)
    position = 0
    for argument in positional:
        for expression in _elements(argument.value) if isinstance(argument, ast.Starred) else [argument]:
            name = arguments[position] if position < len(arguments) else star_argument
            if name is not None:
                bound[name] += [
                    expression,
                    *(_elements(expression) if indexed_call.argument_offset is not None else ()),
                ]
            position += 1
    for k in indexed_call.node.keywords:
        if k.arg is not None:
            bound[k.arg].append(k.value)
    return BoundCall(indexed_call.node, dict(bound), indexed_call.scopes) if bound else None


def _catches_torch_errors(kind: ast.expr | None) -> bool:
    """Whether a handler catches the errors that torch raises for operands that do not fit."""
    if kind is None:
        return True
    return any(_last_name(k) in _ERRORS for k in (kind.elts if isinstance(kind, ast.Tuple) else [kind]))


def _may_be_module(called: ast.expr, known: Collection[str]) -> bool:
    """Whether what is called may be a module: a name that no definition, import or builtin binds, or `self.net`."""
    if isinstance(called, ast.Attribute):
        return isinstance(called.value, ast.Name) and called.value.id == "self" and called.attr not in known
    return isinstance(called, ast.Name) and called.id not in known and not hasattr(builtins, called.id)


def _elements(node: ast.expr) -> list[ast.expr]:
    """Returns the elements of a tuple, list or set display; nothing for any other expression."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []


def _add_bindings(
    bindings: defaultdict[str, list[tuple[int, ast.expr | None, bool]]], target: ast.expr, value: ast.expr | None,
    is_iterated: bool, line: int,
) -> None:  # fmt: skip
    if isinstance(target, ast.Name):
        bindings[target.id].append((line, value, is_iterated))
    elif isinstance(target, (ast.Tuple, ast.List)):
        is_unpacked = (
            not is_iterated and isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        )
        for i, t in enumerate(target.elts):
            _add_bindings(bindings, t, value.elts[i] if is_unpacked else None, False, line)  # type: ignore[union-attr]


def _underlying_name(node: ast.expr) -> ast.Name | None:
    """Returns the name under slices, views and sums with an integer: `x` of `x.view(-1) + 1`; None for others."""
    while True:
        match node:
            case ast.Name():
                return node
            case ast.Call(func=ast.Attribute(value=value, attr="view" | "reshape" | "flatten" | "unsqueeze" | "long")):
                node = value
            case ast.Subscript(value=value) if isinstance(node.slice, (ast.Slice, ast.Tuple)):
                node = value
            case ast.BinOp(left=value, op=ast.Add() | ast.Sub(), right=ast.Constant(int())):
                node = value
            case _:
                return None


def _argument_names(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)}


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
