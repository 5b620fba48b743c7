"""Who calls a function or a module of a file, by every name that holds it.

`self.attn = Attention(dim)`, `for attn, ff in self.layers`, `apply(attend, q)`, `TABLE = {"attend": attend}`,
`@decorator`, `functools.partial(attend, q)`. Knows syntax; judges names, so it may take a call of something else for
one, and misses none for that.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import target_pairs
from autofuse.source.capture.syntax import children, kept_with, parts, walk

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_GIVEN_NUMBERS = frozenset(
    "Linear Embedding LayerNorm RMSNorm Dropout Conv1d Conv2d Conv3d BatchNorm1d BatchNorm2d GroupNorm Parameter int "
    "float len range zeros ones randn rand arange tensor".split()
)
# Functions that call what they are given, with what they are given besides.
_CALLING = frozenset(
    "map starmap filter partial checkpoint vmap submit apply_async tree_map run_in_executor functional_call".split()
)
_KEEPING = frozenset("append extend insert add_module register_module setattr".split())
_SAME_MODULE = frozenset(
    "eval train to cuda cpu xpu half float double bfloat16 requires_grad_ compile apply share_memory".split()
)


_READ = frozenset(
    {
        *_FUNCTIONS,
        ast.Module,
        ast.Assign,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.For,
        ast.comprehension,
        ast.Return,
        ast.Call,
    }
)


class _Text(ast.Constant):
    value: str


FORWARD = ("forward", "__call__")


@dataclass(frozen=True, eq=False)
class IndexedCall:
    """A call, the functions that it stands in, and the names that are bound to what it is a part of.

    `handed` is how many of its arguments come before those of the function, where another function is to call it:
    1 for `map(attend, queries)`.
    """

    node: ast.Call
    scopes: tuple[ast.AST, ...]
    targets: frozenset[str]
    handed: int | None = None


class CallIndex:
    """What a file calls, and what its names hold. Made once for a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: defaultdict[str, list[IndexedCall]] = defaultdict(list)  # by the last part of the name
        self.holders: defaultdict[str, set[str]] = defaultdict(set)  # `f()` is what f returns
        self.followers: defaultdict[str, set[str]] = defaultdict(set)  # class -> those after it in a Sequential
        self.within: dict[ast.AST, str] = {}  # method -> its class
        self.named: defaultdict[str, list[Function]] = defaultdict(list)
        self.forwards: dict[str, Function] = {}  # class -> what it computes
        self._parameters: dict[str, list[str]] = {}  # function, or class -> the arguments of its constructor
        self._gathering: dict[str, str] = {}  # the same -> its `*arguments`
        self._made: set[str] = set()  # classes
        for node in walk(tree):
            if isinstance(node, ast.ClassDef):
                self._define(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.Attribute) and node.attr[:1].isupper() and isinstance(node.value, ast.Name):
                self._made.add(node.attr)  # model.Attention
            elif isinstance(node, _FUNCTIONS):
                self.named[node.name].append(node)
        for name, functions in self.named.items():
            self._take(name, functions[0], skip=functions[0] in self.within)
        for node in list(self.within):
            if getattr(node, "name", "") == "__init__":
                self._take(self.within[node], node, skip=True)  # type: ignore[arg-type]
        self._read(tree)

    def is_class(self, name: str) -> bool:
        """Whether calling `name` makes an instance: a class of the file, or one of another file by its spelling."""
        return name in self._made

    def names_of(self, first: Iterable[str]) -> Iterator[str]:
        """The names that hold what one of `first` holds, itself first."""
        todo, seen = list(first), set[str]()
        while todo:
            name = todo.pop(0)
            if name not in seen:
                seen.add(name)
                yield name
                todo += sorted(self.holders[name])

    def calls_by(self, name: str) -> Iterator[IndexedCall]:
        """The calls of what `name` holds: `Attention(dim)` makes a module, `Attention(dim)(x)` calls it."""
        for called in self.calls[name]:
            if called.handed is not None or not self.is_class(name) or _last(called.node.func) != name:
                yield called

    def instances(self, name: str) -> Iterator[IndexedCall]:
        """The calls that make an instance of the class `name`."""
        return (c for c in self.calls[name] if c.handed is None and _last(c.node.func) == name)

    def _define(self, node: ast.ClassDef) -> None:
        self._made.add(node.name)
        self._parameters.setdefault(node.name, [])
        for method in node.body:
            if isinstance(method, _FUNCTIONS):
                self.within[method] = node.name
                if method.name == "forward":
                    self.forwards[node.name] = method
        for base in node.bases:
            if name := _last(base):
                self.holders[name].add(node.name)

    def _take(self, name: str, function: Function, skip: bool) -> None:
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        self._parameters[name] = arguments[1:] if skip else arguments
        if function.args.vararg is not None:
            self._gathering[name] = function.args.vararg.arg

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Classes that are imported, `from model import Attention as Base`, or made by way of their module."""
        for a in node.names if isinstance(node, ast.ImportFrom) else ():
            name = a.asname or a.name
            if a.name[:1].isupper():
                self._made.add(name)
            if name != a.name:
                self.holders[a.name].add(name)

    def _read(self, tree: ast.Module) -> None:
        todo: list[tuple[ast.AST, tuple[ast.AST, ...], frozenset[str]]] = [(tree, (), frozenset())]
        while todo:
            node, scopes, targets = todo.pop()
            if node.__class__ not in _READ:
                todo += [(child, scopes, targets) for child in parts(node)]
                continue
            if isinstance(node, (*_FUNCTIONS, ast.Module)):
                scopes, targets = (*scopes, node), frozenset()
                if isinstance(node, _FUNCTIONS):
                    self._decorate(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                given: list[ast.expr] = [*getattr(node, "targets", ())] or [node.target]  # type: ignore[union-attr]
                targets |= {n.id for t in given for n in walk(t) if isinstance(n, ast.Name)}
                for target, value in (p for g in given for p in _pairs(g, node.value)):
                    self._hold(value, [target])
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._hold(node.iter, [node.target])
            elif isinstance(node, ast.Return) and scopes and node.value is not None:
                self._hold(node.value, [ast.Name(f"{getattr(scopes[-1], 'name', '')}()")])
            elif isinstance(node, ast.Call):
                self._call(node, scopes, targets)
            todo += [(child, scopes, targets) for child in parts(node)]

    def _decorate(self, function: Function) -> None:
        held = self.holders[decorated(function)]
        for decorator in function.decorator_list:
            held |= {*self._parameters.get(name_called(decorator), ())[:1]}
            if isinstance(decorator, ast.Call):  # the function inside it is what is called with the function
                for outer in self.named.get(name_called(decorator), ()):
                    inner = [s for s in outer.body if isinstance(s, _FUNCTIONS)]
                    held |= {a.arg for s in inner for a in s.args.args[:1]}

    def _call(self, call: ast.Call, scopes: tuple[ast.AST, ...], targets: frozenset[str]) -> None:
        name = name_called(call.func)
        placed = IndexedCall(call, scopes, targets)
        also = set(self._mentioned(call.func)) - {name} if not isinstance(call.func, ast.Name) else set()
        if name in FORWARD and isinstance(call.func, ast.Attribute) and (owner := name_called(call.func.value)):
            self.calls[owner].append(placed)  # model.forward(x)
        for each in (name, *sorted(also if _holds_call(call.func) else ())):
            self.calls[each].append(placed)
        self._give(call, name)
        if name not in _CALLING or name in self._parameters:
            return
        for i, given in enumerate(call.args):
            for mentioned in self._mentioned(given) if isinstance(given, (ast.Name, ast.Attribute, ast.Call)) else ():
                self.calls[mentioned].append(IndexedCall(call, scopes, targets, i + 1))

    def _hold(self, value: ast.expr | None, targets: list[ast.expr]) -> None:
        names = {name for t in targets for n in walk(t) if (name := _last(n))} - {"self"}
        for name in self._mentioned(value):
            self.holders[name] |= names - {name}

    def _give(self, call: ast.Call, name: str) -> None:
        """What a call keeps of its arguments: a list that is appended to, a wrapper, a function that is to call one."""
        if name == "Sequential":
            made = [name_called(a.func) if isinstance(a, ast.Call) else "" for a in call.args]
            for first, second in pairwise(made):
                self.followers[first].add(second)
        if name in _KEEPING and isinstance(call.func, ast.Attribute):
            names = [ast.Name(a.value) for a in call.args if _is_text(a)]
            for given in call.args:
                self._hold(given, [call.func.value, *names])
        if name == "partial" and call.args:  # partial(apply, attend): apply is given attend
            name, arguments = _last(call.args[0]), call.args[1:]
        else:
            arguments = call.args
        if name not in self._parameters:
            return
        also = {name} if self.is_class(name) else set()
        taken = dict(enumerate(self._parameters[name]))
        for i, given in enumerate(arguments):
            for mentioned in self._mentioned(given):
                self.holders[mentioned] |= ({taken.get(i, self._gathering.get(name, name))} | also) - {mentioned}
        for k in call.keywords:
            for mentioned in self._mentioned(k.value):
                self.holders[mentioned] |= ({k.arg or name} | also) - {mentioned}

    def _mentioned(self, value: ast.AST | None) -> Iterator[str]:
        """The names that an expression may hold: what it calls is data, unless a class of the file is."""
        todo: list[ast.AST] = [value] if value is not None else []
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Call) and _last(node.func) in _GIVEN_NUMBERS:
                continue
            if isinstance(node, ast.Call):
                todo += [*node.args, *node.keywords, *self._made_by(node)]
                if (name := _last(node.func)) in self.named:
                    yield f"{name}()"
            elif isinstance(node, ast.Lambda):
                todo += [n.func for n in walk(node.body) if isinstance(n, ast.Call) and _last(n.func) in self.named]
            elif name := _last(node):
                yield name
            else:
                todo += children(node)

    def _made_by(self, call: ast.Call) -> Iterator[ast.AST]:
        """What a call may give besides its arguments: an instance, the module itself, what is looked up by its name."""
        function = call.func
        if self.is_class(_last(function)) or not _last(function):
            yield function
        elif isinstance(function, ast.Attribute) and function.attr in _SAME_MODULE:
            yield function.value
        elif _last(function) == "getattr":
            yield from (ast.Name(a.value) for a in call.args if _is_text(a))


def call_index(tree: ast.Module) -> CallIndex:
    """The calls of a file, found once for whatever asks for them."""
    found: CallIndex = kept_with(tree, "_calls", CallIndex)
    return found


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Each target and what it is given: `a, b = A(), B()` are two."""
    if value is not None:
        yield from target_pairs(target, value)


def _is_text(node: ast.AST | None) -> TypeGuard[_Text]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _holds_call(node: ast.AST) -> bool:
    return any(isinstance(n, (ast.Call, ast.Subscript)) for n in walk(node))


def decorated(function: Function) -> str:
    """The name of a function as its decorators are given it, which is no other method's."""
    return f"@{function.name} {function.lineno}"


def name_called(function: ast.AST) -> str:
    """`attn` of self.attn(x), self.layers[0].attn(x) and attn(dim)(x); `blocks` of self.blocks[0](x)."""
    while isinstance(function, (ast.Call, ast.Subscript)):
        function = function.func if isinstance(function, ast.Call) else function.value
    return _last(function)
