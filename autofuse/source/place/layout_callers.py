"""Does the rest of a file rely on how what a function returns lies in memory?

Finds the calls of a function or of a module of a class: by its name, and by every name that holds the module or
something that holds it (`self.attn = Attention(dim)`, `for attn, ff in self.layers`). A call whose result is returned
makes a call of the function that returns it another one to look at. Knows syntax; judges names, so it may find a read
that is of something else, and never misses one for that.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeGuard

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.syntax import children, parts, walk
from autofuse.source.place.layout_reads import ASKED, TURNED

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_KEEPING = frozenset("append extend insert add_module register_module setattr".split())
_FORWARD = ("forward", "__call__")


@dataclass(frozen=True, eq=False)
class _Called:
    """A call, the functions that it stands in, and the names that are bound to what it is a part of."""

    node: ast.Call
    scopes: tuple[ast.AST, ...]
    targets: frozenset[str]


@dataclass(eq=False)
class _Reads:
    """What a scope asks the layout of: calls, and names.

    `told`: where the answer is no error but another result, or no error as the tensor lies by the code as it stands.
    """

    calls: set[ast.Call] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class LayoutIndex:
    """What a file asks of layouts, what it calls, and what its names hold. Made once for a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._calls: defaultdict[str, list[_Called]] = defaultdict(list)  # by the last part of the name that is called
        self._asked: defaultdict[tuple[ast.AST, bool], _Reads] = defaultdict(_Reads)
        self._holders: defaultdict[str, set[str]] = defaultdict(set)
        self._returned: defaultdict[ast.AST, _Reads] = defaultdict(_Reads)
        self._within: dict[ast.AST, str] = {}  # method -> its class
        self._named: defaultdict[str, list[Function]] = defaultdict(list)
        self._initial: dict[str, list[str]] = {}  # class -> the arguments of its constructor
        self._forwards: dict[str, Function] = {}  # class -> what it computes
        self._followers: defaultdict[str, set[str]] = defaultdict(set)  # class -> those after it in a Sequential
        self._answers: dict[tuple[str, bool], tuple[bool, frozenset[str]]] = {}
        self._classes: set[str] = set()  # of other files of the project
        for node in walk(tree):
            if isinstance(node, ast.ClassDef):
                self._define(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.Attribute) and node.attr[:1].isupper() and isinstance(node.value, ast.Name):
                self._classes.add(node.attr)  # model.Attention
            elif isinstance(node, _FUNCTIONS):
                self._named[node.name].append(node)
        self._read(tree)

    def asked_anywhere(self, told: bool = False) -> bool:
        """Whether the file asks for any layout at all; `told`: other than by a view that raises an error."""
        return any(reads.calls or reads.names for (_, kind), reads in self._asked.items() if kind or not told)

    def callers_ask(self, function: Function, owner: ClassScope | None, told: bool = False) -> bool:
        """Whether some call of `function` in the file is followed by a read of the layout of what it returns."""
        return anybody_asks([self], function, owner, told)

    def calls_of(self, first: str) -> Iterator[ast.Call]:
        """The calls of a function `first`, or of modules of the class `first`, by every name that may hold one."""
        todo, seen = [first], set[str]()
        while todo:
            if (name := todo.pop()) not in seen:
                seen.add(name)
                todo += self._holders[name]
                made = self._is_class(name) or name[:1].isupper()  # Attn = Linear if fast else Full; Attn(dim)
                yield from (c.node for c in self._calls[name] if not made or isinstance(c.node.func, ast.Call))

    def asks_of_arguments(self, name: str, told: bool) -> bool:
        """Whether a function of the file asks for the layout of something that it is given."""
        return any(self._asks(f, _arguments(f), told) for f in self._named[name])

    def about(self, name: str, told: bool) -> tuple[bool, frozenset[str]]:
        """Whether what `name` gives is asked for its layout, and the names of the file that give it on."""
        if (name, told) not in self._answers:
            self._answers[name, told] = self._ask(name, told)
        return self._answers[name, told]

    def _ask(self, first: str, told: bool) -> tuple[bool, frozenset[str]]:
        todo, seen, passed = [first], set[str](), set[str]()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            todo += self._holders[name]
            forwards = (f for n in self._followers[name] if (f := self._forwards.get(n)) is not None)
            if any(self._asks(f, _arguments(f), told) for f in forwards):
                return True, frozenset()
            for called in self._calls[name]:
                if self._is_class(name) and not isinstance(called.node.func, ast.Call):
                    continue  # Attention(dim) makes the module, Attention(dim)(x) calls it
                if self._is_asked(called, told):
                    return True, frozenset()
                passed |= {*self._returning(called)}
            todo += passed
        return False, frozenset(passed - {first})

    def _is_asked(self, called: _Called, told: bool) -> bool:
        for scope in called.scopes:
            for kind in (True,) if told else (True, False):
                reads = self._asked.get((scope, kind))
                if reads and (called.node in reads.calls or not reads.names.isdisjoint(called.targets)):
                    return True
        return any(self.asks_of_arguments(n, told) for n in self._handed_to(called))

    def _handed_to(self, called: _Called) -> Iterator[str]:
        """The functions of the file that are given what a call returns."""
        for scope in called.scopes[-1:]:
            for n in walk(scope):
                if isinstance(n, ast.Call) and _name_called(n) in self._named:
                    given = [*n.args, *(k.value for k in n.keywords)]
                    if any(a is called.node or isinstance(a, ast.Name) and a.id in called.targets for a in given):
                        yield _name_called(n)

    def _returning(self, called: _Called) -> Iterator[str]:
        for scope in called.scopes:
            returned = self._returned.get(scope)
            if returned and (called.node in returned.calls or not returned.names.isdisjoint(called.targets)):
                name = getattr(scope, "name", "")
                yield self._within.get(scope, name) if name in _FORWARD else name

    def _asks(self, scope: ast.AST, names: set[str], told: bool) -> bool:
        kinds = (True,) if told else (True, False)
        return any((scope, k) in self._asked and not self._asked[scope, k].names.isdisjoint(names) for k in kinds)

    def _define(self, node: ast.ClassDef) -> None:
        for method in node.body:
            if isinstance(method, _FUNCTIONS):
                self._within[method] = node.name
                if method.name == "forward":
                    self._forwards[node.name] = method
                if method.name == "__init__":
                    self._initial[node.name] = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
        self._initial.setdefault(node.name, [])

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Classes that are imported, `from model import Attention as Base`, or made by way of their module."""
        for a in node.names if isinstance(node, ast.ImportFrom) else ():
            name = a.asname or a.name
            if a.name[:1].isupper():
                self._classes.add(name)
            if name != a.name:
                self._holders[a.name].add(name)

    def _read(self, tree: ast.Module) -> None:
        todo: list[tuple[ast.AST, tuple[ast.AST, ...], frozenset[str], bool]] = [(tree, (), frozenset(), False)]
        while todo:
            node, scopes, targets, tried = todo.pop()
            if isinstance(node, (*_FUNCTIONS, ast.Module)):
                scopes, targets = (*scopes, node), frozenset()
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                given: list[ast.expr] = [*getattr(node, "targets", ())] or [node.target]  # type: ignore[union-attr]
                targets |= {n.id for t in given for n in walk(t) if isinstance(n, ast.Name)}
                self._hold(node.value, given)
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._hold(node.iter, [node.target])
            elif isinstance(node, ast.Return) and scopes:
                _starts(node.value, self._returned[scopes[-1]])
            elif isinstance(node, ast.Call):
                self._calls[_name_called(node)].append(_Called(node, scopes, targets))
                self._give(node)
            elif isinstance(node, ast.Attribute) and (node.attr in ASKED or node.attr in ("view", "view_as")):
                answered = tried or node.attr in ASKED or _is_turned(node.value)
                for scope in scopes:
                    _starts(node.value, self._asked[scope, answered])
            tried = tried or isinstance(node, (ast.Try, ast.Lambda))
            todo += [(child, scopes, targets, tried) for child in parts(node)]

    def _hold(self, value: ast.expr | None, targets: list[ast.expr]) -> None:
        names = {name for t in targets for n in walk(t) if (name := _last(n))} - {"self"}
        for name in self._mentioned(value):
            self._holders[name] |= names - {name}

    def _give(self, call: ast.Call) -> None:
        """What a call keeps of its arguments: a list that is appended to, a wrapper that is constructed."""
        name = _name_called(call)
        if name == "Sequential":
            made = [_name_called(a) if isinstance(a, ast.Call) else "" for a in call.args]
            for first, second in pairwise(made):
                self._followers[first].add(second)
        if name in _KEEPING and isinstance(call.func, ast.Attribute):
            for given in call.args:
                self._hold(given, [call.func.value, *(ast.Name(str(a.value)) for a in call.args if _is_text(a))])
        arguments = dict(enumerate(self._initial.get(name, ())))
        for i, given in enumerate(call.args if name in self._initial else ()):
            for mentioned in self._mentioned(given):
                self._holders[mentioned] |= {name, arguments.get(i, name)}
        for k in call.keywords if name in self._initial else ():
            for mentioned in self._mentioned(k.value):
                self._holders[mentioned] |= {name, k.arg or name}

    def _mentioned(self, value: ast.expr | None) -> Iterator[str]:
        """The names that an expression may hold: what it calls is data, unless a class of the file is."""
        todo: list[ast.AST] = [value] if value is not None else []
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Call):
                named = self._is_class(_last(node.func))
                todo += [*node.args, *node.keywords, *([node.func] if named else [])]
            elif name := _last(node):
                yield name
            else:
                todo += children(node)

    def _is_class(self, name: str) -> bool:
        """Whether calling `name` makes an instance: a class of the file, or one of another file by its spelling."""
        return name in self._initial or name in self._classes


def anybody_asks(
    indexes: Sequence[LayoutIndex], function: Function, owner: ClassScope | None, told: bool = False
) -> bool:
    """Whether some call of `function` in these files is followed by a read of the layout of what it returns."""
    module = owner is not None and function.name in _FORWARD
    todo, seen = [owner.node.name if module and owner is not None else function.name], set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for index in indexes:
            asked, passed = index.about(name, told)
            if asked:
                return True
            todo += passed
    return False


def _arguments(function: Function) -> set[str]:
    return {a.arg for a in walk(function.args) if isinstance(a, ast.arg)}


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _name_called(call: ast.Call) -> str:
    """`attn` of self.attn(x), self.layers[0].attn(x) and attn(dim)(x); `blocks` of self.blocks[0](x)."""
    func: ast.AST = call.func
    while isinstance(func, (ast.Call, ast.Subscript)):
        func = func.func if isinstance(func, ast.Call) else func.value
    return _last(func)


def _is_turned(node: ast.expr) -> bool:
    """Whether dimensions are swapped before a view: of what lies in their new order, which a fused result does not."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in TURNED:
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("contiguous", "clone", "reshape"):
            return False
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def _starts(node: ast.expr | None, reads: _Reads) -> None:
    """Adds the calls and the names that an expression may start at: `attend(x)` in `attend(x).float()[0]`."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            reads.names.add(node.id)
        elif isinstance(node, ast.Call):
            reads.calls.add(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr != "contiguous":
                todo += [node.func.value, *node.args[: _last(node.func.value) == "torch"]]
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            todo.append(node.value)
        elif isinstance(node, ast.BinOp):
            todo += [node.left, node.right]
        elif isinstance(node, ast.Tuple):
            todo += node.elts
        elif isinstance(node, ast.IfExp):
            todo += [node.body, node.orelse]
