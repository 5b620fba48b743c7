"""Who reads an element of the tuple that a function returns? `y, weights = self.attention(x)` may never read `weights`.

Follows an element through callers that return it in turn. Finds calls by name, as layout_callers.py does, so it may
take a call of something else for one of the function; a use that it cannot tell counts as a read. Edits nothing.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import call_index
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_FORWARD = ("forward", "__call__")
_MOST = 64  # functions that hand an element on


@dataclass(frozen=True)
class ResultUse:
    """Whether one caller reads an element. `kept`: the attribute or element that it assigns it to, as it is written."""

    file: str
    line: int
    reads: bool
    kept: str = ""


@dataclass(frozen=True)
class Returned:
    """An element of what a function returns, and the file and class that define the function."""

    function: Function
    owner: str  # the class that it is a method of, or ""
    scope: FileScope
    element: int

    @property
    def called(self) -> str:
        """The name under which calls are looked for: a class is called by way of its instances."""
        return self.owner if self.owner and self.function.name in _FORWARD else self.function.name


Users = Callable[[FileScope], tuple[FileScope, ...]]  # the other files that import from one


def lengths_returned(function: Function) -> set[int | None]:
    """How many elements each `return` of a function gives; None where it is no tuple that is written out."""
    return {_length(r.value) for r in returns(function)}


def returns(function: Function) -> Iterator[ast.Return]:
    """The `return` statements of a function's own."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return):
            yield node
        elif isinstance(node, ast.stmt) and not isinstance(node, (Function, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            todo += node.body


def _length(value: ast.expr | None) -> int | None:
    written = isinstance(value, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in value.elts)
    return len(value.elts) if written and isinstance(value, ast.Tuple) else None


def uses_of(returned: Returned, users: Users) -> list[ResultUse]:
    """What the callers in the given files do with an element, those included that get it handed on."""
    todo, seen, found = [returned], set[tuple[str, int, int]](), dict[ResultUse, None]()
    while todo and len(seen) < _MOST:
        at = todo.pop()
        key = at.called, at.element, id(at.scope.tree)  # another file may define another class of that name
        if key in seen:
            continue
        seen.add(key)
        before = len(found) + len(todo)
        for scope in (at.scope, *users(at.scope)):
            for call, handed in calls_of(at, scope):
                for use in [_read(scope, call)] if handed else _uses(call, at.element, scope):
                    if isinstance(use, Returned):
                        todo.append(use)
                    else:
                        found[use] = None
        if at is not returned and len(found) + len(todo) == before:  # nobody here calls what hands it on
            line = at.function.lineno
            found[ResultUse(str(at.scope.file or ""), line, reads=True)] = None
    if todo:
        found[ResultUse(str(returned.scope.file or ""), returned.function.lineno, reads=True)] = None
    return sorted(found, key=lambda u: (not u.reads, u.file, u.line))


def calls_of(returned: Returned, scope: FileScope) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of a function in a file, and whether another function calls it there: `map(attend, queries)`."""
    index = call_index(scope.tree)
    for name in index.names_of([returned.called]):
        for placed in index.calls_by(name):
            makes = name[:1].isupper() and isinstance(placed.node.func, (ast.Name, ast.Attribute))
            if placed.handed is not None or not makes:  # Attn = Linear if fast else Full; Attn(dim)
                yield placed.node, placed.handed is not None


def _uses(call: ast.Call, element: int, scope: FileScope) -> Iterator[ResultUse | Returned]:
    """What is done with an element of the result of one call."""
    nesting = scope.index(Nesting)
    around = nesting.parents.get(call)
    match around:
        case ast.Expr():
            yield _dropped(scope, call)
        case ast.Subscript(value=whole, slice=index) if whole is call:
            yield _dropped(scope, call) if _takes(index, element) is False else _read(scope, call)
        case ast.Return():
            yield _handed_on(nesting, around, scope, element) or _read(scope, call)
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            yield from _bound(call, target, element, scope)
        case _:
            yield _read(scope, call)


def _bound(call: ast.Call, target: ast.expr, element: int, scope: FileScope) -> Iterator[ResultUse | Returned]:
    if isinstance(target, ast.Name):
        yield from _whole_uses(call, target.id, element, scope)
        return
    at = _unpacked(target, element)
    if isinstance(at, ast.Name):
        yield from _name_uses(call, at.id, scope)
    else:
        yield _read(scope, call, f"`{ast.unparse(at)}`" if at is not None else "")


def _unpacked(target: ast.expr, element: int) -> ast.expr | None:
    """What an element of a tuple is assigned to: `weights` of `x, weights`, `rest` of `x, *rest`."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    for i, part in enumerate(target.elts):
        if isinstance(part, ast.Starred):
            return part.value
        if i == element:
            return part
    return None


def _name_uses(call: ast.Call, name: str, scope: FileScope) -> Iterator[ResultUse | Returned]:
    """What is done with the name that an element is bound to, anywhere in the function."""
    nesting = scope.index(Nesting)
    reads = scope.index(_Reads).of(function_around(nesting, call) or scope.tree, name)
    if not reads:
        yield _dropped(scope, call)
    for read in reads:
        around = nesting.parents.get(read)
        handed = None
        if isinstance(around, ast.Tuple) and isinstance(outer := nesting.parents.get(around), ast.Return):
            if not any(isinstance(e, ast.Starred) for e in around.elts):
                handed = _handed_on(nesting, outer, scope, around.elts.index(read))
        yield handed or _read(scope, read)


def _whole_uses(call: ast.Call, name: str, element: int, scope: FileScope) -> Iterator[ResultUse | Returned]:
    """What is done with an element of a tuple that a name holds."""
    nesting = scope.index(Nesting)
    reads = scope.index(_Reads).of(function_around(nesting, call) or scope.tree, name)
    if not reads:
        yield _dropped(scope, call)
    for read in reads:
        match nesting.parents.get(read):
            case ast.Subscript(value=whole, slice=index) if whole is read and _takes(index, element) is False:
                yield _dropped(scope, read)
            case ast.Assign(targets=[target]) if not isinstance(target, ast.Name):
                yield from _bound(call, target, element, scope)
            case ast.Return() as statement:
                yield _handed_on(nesting, statement, scope, element) or _read(scope, read)
            case _:
                yield _read(scope, read)


def _takes(index: ast.expr, element: int) -> bool | None:
    """Whether `[index]` takes an element of a tuple; None where that cannot be told."""
    match index:
        case ast.Constant(value=int() as at) if at >= 0:
            return at == element
        case ast.Slice(lower=None, upper=ast.Constant(value=int() as end), step=None) if end >= 0:
            return element < end
        case ast.Slice(lower=ast.Constant(value=int() as start), upper=None, step=None) if start >= 0:
            return element >= start
    return None


def _handed_on(nesting: Nesting, statement: ast.AST, scope: FileScope, element: int) -> Returned | None:
    """The element of what the function around a `return` gives; None where there is none, or another is returned."""
    function = function_around(nesting, statement)
    if function is None:
        return None
    outer = nesting.parents.get(function)
    return Returned(function, outer.name if isinstance(outer, ast.ClassDef) else "", scope, element)


def function_around(nesting: Nesting, node: ast.AST) -> Function | None:
    """The function that a node stands in."""
    for _, parent in nesting.around(node):
        if isinstance(parent, Function):
            return parent
        if isinstance(parent, (ast.Lambda, ast.ClassDef)):
            return None
    return None


def _dropped(scope: FileScope, node: ast.expr) -> ResultUse:
    return ResultUse(str(scope.file or ""), node.lineno, reads=False)


def _read(scope: FileScope, node: ast.expr, kept: str = "") -> ResultUse:
    return ResultUse(str(scope.file or ""), node.lineno, reads=True, kept=kept)


class _Reads:
    """Where each function of a file, or the file itself, reads each name; those inside of it included."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes: dict[int, defaultdict[str, list[ast.Name]]] = {}

    def of(self, function: ast.AST, name: str) -> list[ast.Name]:
        if id(function) not in self._nodes:
            found = self._nodes[id(function)] = defaultdict(list)
            for n in walk(function):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                    found[n.id].append(n)
                elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
                    found[n.target.id].append(n.target)  # `weights += 1` reads it
                elif isinstance(n, (ast.Global, ast.Nonlocal)):  # others may read it
                    for each in n.names:
                        found[each].append(ast.copy_location(ast.Name(each, ast.Load()), n))
        return self._nodes[id(function)][name]
