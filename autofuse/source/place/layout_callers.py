"""Does the rest of a file rely on how what a function returns lies in memory?

Looks at the calls of a function or of a module of a class, by every name that holds it (capture/call_index.py). A call
whose result is returned makes a call of the function that returns it another one to look at. Knows syntax; judges
names, so it may find a read that is of something else, and never misses one for that.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, IndexedCall, call_index, decorated, name_called
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.syntax import parts, walk
from autofuse.source.place.layout_reads import ASKED, TURNED

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class Reads:
    """What a scope asks the layout of: calls, and names.

    `told`: where the answer is no error but another result, or no error as the tensor lies by the code as it stands.
    """

    calls: set[ast.Call] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class LayoutIndex:
    """What a file asks of layouts, and of what its calls return. Made once for a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._index = call_index(tree)
        self.asked: defaultdict[tuple[ast.AST, bool], Reads] = defaultdict(Reads)
        self.returned: defaultdict[ast.AST, Reads] = defaultdict(Reads)
        self._answers: dict[tuple[str, bool], tuple[bool, frozenset[str]]] = {}
        self.read(tree)

    def asked_anywhere(self, told: bool = False) -> bool:
        """Whether the file asks for any layout at all; `told`: other than by a view that raises an error."""
        return any(reads.calls or reads.names for (_, kind), reads in self.asked.items() if kind or not told)

    def callers_ask(self, function: Function, owner: ClassScope | None, told: bool = False) -> bool:
        """Whether some call of `function` in the file is followed by a read of the layout of what it returns."""
        return anybody_asks([self], function, owner, told)

    def asks_of_arguments(self, name: str, told: bool) -> bool:
        """Whether a function of the file asks for the layout of something that it is given."""
        return any(self._asks(f, _arguments(f), told) for f in self._index.named.get(name, ()))

    def about(self, name: str, told: bool) -> tuple[bool, frozenset[str]]:
        """Whether what `name` gives is asked for its layout, and the names of the file that give it on."""
        if (name, told) not in self._answers:
            self._answers[name, told] = self._ask(name, told)
        return self._answers[name, told]

    def _ask(self, first: str, told: bool) -> tuple[bool, frozenset[str]]:
        todo, seen, passed, index = [first], set[str](), set[str](), self._index
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            todo += index.holders[name]
            forwards = (f for n in index.followers[name] if (f := index.forwards.get(n)) is not None)
            if any(self._asks(f, _arguments(f), told) for f in forwards):
                return True, frozenset()
            for called in index.calls_by(name):
                if self._is_asked(called, told):
                    return True, frozenset()
                passed |= {*self._returning(called)}
            todo += passed
        return False, frozenset(passed - {first})

    def _is_asked(self, called: IndexedCall, told: bool) -> bool:
        for scope in called.scopes:
            for kind in (True,) if told else (True, False):
                reads = self.asked.get((scope, kind))
                if reads and (called.node in reads.calls or not reads.names.isdisjoint(called.targets)):
                    return True
        return any(self.asks_of_arguments(n, told) for n in self._handed_to(called))

    def _handed_to(self, called: IndexedCall) -> Iterator[str]:
        """The functions of the file that are given what a call returns."""
        for scope in called.scopes[-1:]:
            for n in walk(scope):
                if isinstance(n, ast.Call) and name_called(n.func) in self._index.named:
                    given = [*n.args, *(k.value for k in n.keywords)]
                    if any(a is called.node or isinstance(a, ast.Name) and a.id in called.targets for a in given):
                        yield name_called(n.func)

    def _returning(self, called: IndexedCall) -> Iterator[str]:
        for scope in called.scopes:
            returned = self.returned.get(scope)
            if returned and (called.node in returned.calls or not returned.names.isdisjoint(called.targets)):
                name = getattr(scope, "name", "")
                yield self._index.within.get(scope, name) if name in FORWARD else name

    def _asks(self, scope: ast.AST, names: set[str], told: bool) -> bool:
        kinds = (True,) if told else (True, False)
        return any((scope, k) in self.asked and not self.asked[scope, k].names.isdisjoint(names) for k in kinds)

    def read(self, tree: ast.Module) -> None:
        """Fills `asked` and `returned`."""
        todo: list[tuple[ast.AST, tuple[ast.AST, ...], bool]] = [(tree, (), False)]
        while todo:
            node, scopes, tried = todo.pop()
            if isinstance(node, (*_FUNCTIONS, ast.Module)):
                scopes = (*scopes, node)
            elif isinstance(node, ast.Return) and scopes:
                starts(node.value, self.returned[scopes[-1]])
            elif isinstance(node, ast.Attribute) and (node.attr in ASKED or node.attr in ("view", "view_as")):
                answered = tried or node.attr in ASKED or _is_turned(node.value)
                for scope in scopes:
                    starts(node.value, self.asked[scope, answered])
            tried = tried or isinstance(node, (ast.Try, ast.Lambda))
            todo += [(child, scopes, tried) for child in parts(node)]


def anybody_asks(
    indexes: Sequence[LayoutIndex], function: Function, owner: ClassScope | None, told: bool = False
) -> bool:
    """Whether some call of `function` in these files is followed by a read of the layout of what it returns."""
    module = owner is not None and function.name in FORWARD
    todo, seen = [owner.node.name if module and owner is not None else function.name, decorated(function)], set[str]()
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


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_turned(node: ast.expr) -> bool:
    """Whether dimensions are swapped before a view: of what lies in their new order, which a fused result does not."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in TURNED:
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("contiguous", "clone", "reshape"):
            return False
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def starts(node: ast.expr | None, reads: Reads) -> None:
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
