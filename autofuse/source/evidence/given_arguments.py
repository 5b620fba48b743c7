"""What the calls of a file give to the arguments of a function: `Swish()(torch.arange(8))` gives integers.

Follows an argument that a caller was given itself to the callers of that. Finds what the text shows, no more: calls
from other files are not seen. Knows calls, names and what makes a tensor.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, IndexedCall, call_index, decorated, name_called
from autofuse.source.capture.scope import Defined, FileScope, file_scope, target_pairs
from autofuse.source.capture.syntax import children, walk
from autofuse.source.evidence.made_tensors import Made, Reader, Sizes

_MOST_CALLS = 64  # of one function
_DEEPEST = 4  # functions that hand an argument on
_ERRORS = frozenset("RuntimeError IndexError TypeError ValueError NotImplementedError Exception BaseException".split())
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_INDEXING = frozenset(
    "embedding one_hot embedding_bag bincount index_select gather take take_along_dim scatter".split()
)


@dataclass(frozen=True, eq=False)
class GivenCall:
    """One call, by what it gives: argument -> the expressions that may be its value, as far as the text shows them."""

    call: ast.Call
    arguments: dict[str, list[ast.expr]]
    scopes: tuple[ast.AST, ...]

    @property
    def text(self) -> str:
        return ast.unparse(self.call).splitlines()[0]


class GivenArguments:
    """The calls of one file. Made once for a file: `scope.index(GivenArguments)`."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree, self._calls = tree, call_index(tree)
        self._scope: FileScope | None = None
        self._bound: dict[int, dict[str, list[tuple[int, ast.expr | None, bool]]]] = {}
        self._attributes: defaultdict[str, list[ast.expr]] | None = None
        self._owners = self._calls.within
        self._indices: dict[int, list[ast.Name]] = {}

    @property
    def scope(self) -> FileScope:
        if self._scope is None:
            self._scope = file_scope(self._tree)
        return self._scope

    def calls_of(self, d: Defined) -> list[GivenCall]:
        """The calls of a function, a method or a module's forward that the file makes."""
        return self._calls_of(d.function, d.owner.node.name if d.owner is not None and d.me is None else "")

    def is_tried(self, d: Defined) -> bool:
        """Whether the file calls a function where it goes on after an error: what it is given is not known to fit."""
        owner = d.owner.node.name if d.owner is not None and d.me is None else ""
        name = owner if owner and d.function.name in FORWARD else d.function.name
        found = (c for n in self._calls.names_of([name, decorated(d.function)]) for c in self._calls.calls_by(n))
        return any(id(c.node) in self._tried for c in found)

    @cached_property
    def _tried(self) -> frozenset[int]:
        """The calls whose errors are caught or suppressed in the function that they stand in."""
        blocks: list[ast.stmt] = []
        for n in walk(self._tree):
            if isinstance(n, ast.Try) and any(_catches(h.type) for h in n.handlers):
                blocks += n.body
            elif isinstance(n, (ast.With, ast.AsyncWith)):
                calls = (i.context_expr for i in n.items if isinstance(i.context_expr, ast.Call))
                if any(_last(c.func) == "suppress" and any(map(_catches, c.args)) for c in calls):
                    blocks += n.body
        return frozenset(id(n) for s in blocks for n in walk(s) if isinstance(n, ast.Call))

    def constructions(self, owner: str, init: Function) -> list[GivenCall]:
        """The calls that make an instance of a class, by what they give to its constructor."""
        found = (p for name in self._calls.names_of([owner]) for p in self._calls.instances(name))
        return [g for p in list(found)[:_MOST_CALLS] if (g := _given(p, init, skip=True)) is not None]

    def _calls_of(self, function: Function, owner: str) -> list[GivenCall]:
        name = owner if owner and function.name in FORWARD else function.name
        found, seen = list[GivenCall](), set[int]()
        for each in self._calls.names_of([name, decorated(function)]):
            for placed in self._calls.calls_by(each):
                spend()
                if id(placed.node) in seen or len(found) > _MOST_CALLS or function in placed.scopes[-1:]:
                    continue
                if (given := _given(placed, function, skip=bool(owner))) is not None:
                    seen.add(id(placed.node))
                    found.append(given)
        return found

    def made(self, given: GivenCall, argument: str, depth: int = _DEEPEST) -> list[Made]:
        """What a call gives to an argument."""
        return [m for e in given.arguments.get(argument, ()) if (m := self._made(e, given.scopes, depth)) is not None]

    def sizes_given(self, d: Defined, argument: str) -> list[Sizes]:
        """The sizes of what every call of the file gives to an argument; none where one of them does not show it."""
        found = list[Sizes]()
        for given in self.calls_of(d):
            expressions = given.arguments.get(argument, [])
            made = [self._made_at(e, given) for e in expressions if self._has_one_value(e, given.scopes)]
            sizes = [m.sizes for m in made if m is not None and m.sizes is not None and not m.number]
            if not sizes or len(sizes) != len(expressions):
                return []
            found += sizes
        return found

    def _made_at(self, node: ast.expr, given: GivenCall) -> Made | None:
        return self._made(node, given.scopes, _DEEPEST)

    def _has_one_value(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int = _DEEPEST) -> bool:
        """Whether an expression has one value by the text: each name in it has that of its only assignment."""
        for n in walk(node):
            if isinstance(n, ast.Attribute) and self._assigned_attributes()[n.attr]:
                return False
            if isinstance(n, ast.Name):
                bound = [b for s in scopes for b in self._bindings(s).get(n.id, ())]
                given = any(isinstance(s, Function) and n.id in _names_of_arguments(s) for s in scopes)
                if given or len(bound) > 1 or depth == 0:
                    return False
                for _, value, each in bound:
                    if value is None or each or not self._has_one_value(value, scopes, depth - 1):
                        return False
        return True

    def _made(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> Made | None:
        return Reader(self.scope, lambda n: self._held(n, scopes, depth)).read(node)

    def _held(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> Iterator[ast.expr | Made]:
        spend()
        if isinstance(node, ast.Attribute):
            yield from self._assigned_attributes()[node.attr][:4]
            return
        if not isinstance(node, ast.Name):
            return
        for scope in reversed(scopes):
            found = self._reaching(node, scope)
            if found is not None:
                yield from found
                return
            if isinstance(scope, Function) and node.id in _names_of_arguments(scope):
                yield from self._given_to(scope, node.id, depth - 1)
                return

    def _given_to(self, function: Function, argument: str, depth: int) -> Iterator[Made]:
        """What the callers of a function around give to it."""
        for given in self._calls_of(function, self._owners.get(function, "")) if depth > 0 else ():
            yield from self.made(given, argument, depth)

    def _reaching(self, node: ast.Name, scope: ast.AST) -> list[ast.expr] | None:
        """What a name was last assigned before a place, by line; None where the scope does not bind it there."""
        bound = self._bindings(scope).get(node.id, [])
        before = [b for b in bound if b[0] <= node.lineno] if isinstance(scope, Function) else bound
        if not before:
            return None
        last = max(b[0] for b in before)
        values = [(v, each) for line, v, each in before if line == last or not isinstance(scope, Function)]
        return [e for v, each in values if v is not None for e in (_elements(v) if each else [v])]

    def _bindings(self, scope: ast.AST) -> dict[str, list[tuple[int, ast.expr | None, bool]]]:
        """name -> (line, value, whether the name holds each element of it), for what one scope binds itself."""
        if id(scope) not in self._bound:
            found: defaultdict[str, list[tuple[int, ast.expr | None, bool]]] = defaultdict(list)
            todo: list[ast.AST] = list(getattr(scope, "body", ()))
            while todo:
                n = todo.pop()
                if isinstance(n, ast.Assign):
                    for t in n.targets:
                        _bind(found, t, n.value, False, n.lineno)
                elif isinstance(n, (ast.AnnAssign, ast.NamedExpr)):
                    _bind(found, n.target, n.value, False, n.lineno)
                elif isinstance(n, ast.AugAssign):
                    _bind(found, n.target, None, False, n.lineno)
                elif isinstance(n, (ast.For, ast.AsyncFor)):
                    _bind(found, n.target, n.iter, True, n.lineno)
                elif isinstance(n, _COMPREHENSIONS):
                    for c in n.generators:
                        _bind(found, c.target, c.iter, True, n.lineno)
                if not isinstance(n, (Function, ast.ClassDef)):
                    todo += children(n)
            self._bound[id(scope)] = dict(found)
        return self._bound[id(scope)]

    def _assigned_attributes(self) -> defaultdict[str, list[ast.expr]]:
        if self._attributes is None:
            self._attributes = defaultdict(list)
            assigned = ((t, n.value) for n in walk(self._tree) if isinstance(n, ast.Assign) for t in n.targets)
            for target, value in (pair for t, v in assigned for pair in target_pairs(t, v)):
                if isinstance(target, ast.Attribute):
                    self._attributes[target.attr].append(value)
        return self._attributes

    def is_index(self, given: GivenCall, argument: str, depth: int = _DEEPEST) -> bool:
        """Whether what a call gives to an argument is an index elsewhere in the function that calls."""
        return any(self._is_index(e, given.scopes, depth) for e in given.arguments.get(argument, ()))

    def _is_index(self, node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> bool:
        name = _part_of(node)
        if name is None or not scopes or depth == 0:
            return False
        function = scopes[-1]
        if any(n.id == name.id and self._same(n, name, function) for n in self.indices(function)):
            return True
        if self._reaching(name, function) is None and isinstance(function, Function):
            calls = self._calls_of(function, self._owners.get(function, ""))
            return name.id in _names_of_arguments(function) and any(self.is_index(g, name.id, depth - 1) for g in calls)
        return False

    def is_own_index(self, function: Function, argument: str) -> bool:
        """Whether a function uses its argument as an index."""
        return any(n.id == argument and self._reaching(n, function) is None for n in self.indices(function))

    def _same(self, first: ast.Name, second: ast.Name, function: ast.AST) -> bool:
        a, b = self._reaching(first, function), self._reaching(second, function)
        return a is b is None or a is not None and b is not None and [*map(id, a)] == [*map(id, b)]

    def indices(self, function: ast.AST, depth: int = _DEEPEST) -> list[ast.Name]:
        """The names that a function uses as an index, by what it looks up with them."""
        if id(function) not in self._indices:
            self._indices[id(function)] = []  # of a function that calls itself
            found = [i for n in walk(function) for i in self._index_of(n, depth)]
            self._indices[id(function)] = [n for i in found if (n := _part_of(i)) is not None]
        return self._indices[id(function)]

    def _index_of(self, n: ast.AST, depth: int) -> Iterator[ast.expr]:
        if isinstance(n, ast.Subscript):
            yield from (p for p in (n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]) if _part_of(p))
        if not isinstance(n, ast.Call):
            return
        name = name_called(n.func)
        made = [v.func for v in self._assigned_attributes()[name] if isinstance(v, ast.Call)]
        made += [v.func for v in self._values(name) if isinstance(v, ast.Call)]
        if any(_last(f) in ("Embedding", "EmbeddingBag") for f in made) or name in ("embedding", "one_hot"):
            yield from n.args[:1]
        elif name in _INDEXING:
            yield from n.args
        elif name in self._calls.named and depth > 0:
            for function in self._calls.named[name]:
                arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
                arguments = arguments[1:] if function in self._owners else arguments
                inside = {i.id for i in self.indices(function, depth - 1)}
                yield from (a for p, a in zip(arguments, n.args, strict=False) if p in inside)

    def _values(self, name: str) -> Iterator[ast.expr]:
        return (v for _, v, each in self._bindings(self._tree).get(name, ()) if v is not None and not each)


def _given(placed: IndexedCall, function: Function, skip: bool) -> GivenCall | None:
    """What a call gives to the arguments of `function`; None where it gives none."""
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][skip:]
    gathered = function.args.vararg.arg if function.args.vararg is not None else None
    positional = placed.node.args[placed.handed or 0 :]
    found: defaultdict[str, list[ast.expr]] = defaultdict(list)
    at = 0
    for given in positional:
        for e in _elements(given.value) if isinstance(given, ast.Starred) else [given]:
            name = arguments[at] if at < len(arguments) else gathered
            if name is not None:
                found[name] += [e, *(_elements(e) if placed.handed is not None else ())]
            at += 1
    for k in placed.node.keywords:
        if k.arg is not None:
            found[k.arg].append(k.value)
    return GivenCall(placed.node, dict(found), placed.scopes) if found else None


def _catches(kind: ast.expr | None) -> bool:
    """Whether a handler is for errors that torch raises for operands that do not fit."""
    if kind is None:
        return True
    return any(_last(k) in _ERRORS for k in (kind.elts if isinstance(kind, ast.Tuple) else [kind]))


def _elements(node: ast.expr) -> list[ast.expr]:
    """The elements of a display; what else is iterated is taken for one of its elements."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []


def _bind(
    found: defaultdict[str, list[tuple[int, ast.expr | None, bool]]], target: ast.expr, value: ast.expr | None,
    each: bool, line: int,
) -> None:  # fmt: skip
    if isinstance(target, ast.Name):
        found[target.id].append((line, value, each))
    elif isinstance(target, (ast.Tuple, ast.List)):
        same = not each and isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for i, t in enumerate(target.elts):
            _bind(found, t, value.elts[i] if same else None, False, line)  # type: ignore[union-attr]


def _part_of(node: ast.expr) -> ast.Name | None:
    """The name that an expression is, or a part, a view or a sum with a whole number of: `x` of `x.view(-1) + 1`."""
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


def _names_of_arguments(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
