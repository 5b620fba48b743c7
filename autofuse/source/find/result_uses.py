"""Finds the callers that read one element of the tuple that a function returns.

For example, `y, weights = self.attention(x)` may never read `weights`. The search follows the element through callers
that return it in turn. It finds calls by name, as layout_callers.py does. So it may take a call of another function
of that name for a call of this one. A use that it does not understand counts as a read. It edits nothing.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import call_index, called_name
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_FORWARD = ("forward", "__call__")
_MAX_FUNCTIONS = 64  # that return the element in turn; beyond, it counts as read


@dataclass(frozen=True)
class ResultUse:
    """Whether one caller reads the element. `target` is the attribute or item that the caller assigns it to."""

    file: str
    line: int
    reads: bool
    target: str = ""


@dataclass(frozen=True)
class ReturnedElement:
    """One element of the tuple that a function returns, with the file and the class that define the function."""

    function: Function
    owner: str  # the name of the class that has this method; "" for a plain function
    scope: FileScope
    element: int

    @property
    def call_name(self) -> str:
        """The name that a call uses. For `forward`, this is the class: calls go through its instances."""
        return self.owner if self.owner and self.function.name in _FORWARD else self.function.name


# A file and a name -> the other files that import from the file and contain the name.
FindImporters = Callable[[FileScope, str], tuple[FileScope, ...]]


def returned_lengths(function: Function) -> set[int | None]:
    """The lengths of the tuples that the `return` statements give.

    None is for a `return` without a tuple of known length.
    """
    return {_tuple_length(r.value) for r in return_statements(function)}


def return_statements(function: Function) -> Iterator[ast.Return]:
    """Yields the `return` statements of a function, without those of nested functions and classes."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return):
            yield node
        elif isinstance(node, ast.stmt) and not isinstance(node, (Function, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            todo += node.body


def _tuple_length(value: ast.expr | None) -> int | None:
    written = isinstance(value, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in value.elts)
    return len(value.elts) if written and isinstance(value, ast.Tuple) else None


def find_uses(element: ReturnedElement, importers: FindImporters) -> list[ResultUse]:
    """Finds the uses of an element by callers in the given files, also by callers that get it from another caller."""
    pending, seen, uses = [element], set[tuple[str, int, int]](), dict[ResultUse, None]()
    while pending and len(seen) < _MAX_FUNCTIONS:
        current = pending.pop()
        # The key has the tree too, because another file may define the same name.
        key = current.call_name, current.element, id(current.scope.tree)
        if key in seen:
            continue
        seen.add(key)
        before = len(uses) + len(pending)
        for scope in (current.scope, *importers(current.scope, current.call_name)):
            for call, is_argument in find_calls(current, scope):
                for use in [_read(scope, call)] if is_argument else _uses_of_call(call, current.element, scope):
                    if isinstance(use, ReturnedElement):
                        pending.append(use)
                    else:
                        uses[use] = None
        # A function that returns the element in turn has no call here: assume that a caller reads it.
        if current is not element and len(uses) + len(pending) == before:
            line = current.function.lineno
            uses[ResultUse(str(current.scope.file or ""), line, reads=True)] = None
    if pending:
        uses[ResultUse(str(element.scope.file or ""), element.function.lineno, reads=True)] = None
    return sorted(uses, key=lambda u: (not u.reads, u.file, u.line))


def find_calls(element: ReturnedElement, scope: FileScope) -> Iterator[tuple[ast.Call, bool]]:
    """Yields the calls of a function in one file, and whether the function is only an argument there.

    For `map(attend, queries)`, which passes `attend` to another function, the second value is True.
    """
    index = call_index(scope.tree)
    for name in index.aliases_of([element.call_name]):
        for placed in index.calls_of(name):
            func = placed.node.func
            is_name = isinstance(func, (ast.Name, ast.Attribute))
            makes_instance = name[:1].isupper() and is_name and called_name(func) == name
            # `Attn(dim)` only makes an instance, also after `Attn = Linear if fast else Full`.
            if placed.argument_offset is not None or not makes_instance:
                yield placed.node, placed.argument_offset is not None


def _uses_of_call(call: ast.Call, element: int, scope: FileScope) -> Iterator[ResultUse | ReturnedElement]:
    """Yields what one call site does with an element of the result."""
    nesting = scope.index(Nesting)
    parent = nesting.parents.get(call)
    match parent:
        case ast.Expr():
            yield _no_read(scope, call)
        case ast.Subscript(value=result, slice=index) if result is call:
            yield _no_read(scope, call) if _includes(index, element) is False else _read(scope, call)
        case ast.Return():
            yield _returned_in_turn(nesting, parent, scope, element) or _read(scope, call)
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            yield from _uses_of_target(call, target, element, scope)
        case _:
            yield _read(scope, call)


def _uses_of_target(
    call: ast.Call, target: ast.expr, element: int, scope: FileScope
) -> Iterator[ResultUse | ReturnedElement]:
    """Yields what happens to the element after an assignment of the result to `target`."""
    if isinstance(target, ast.Name):
        yield from _uses_of_tuple_name(call, target.id, element, scope)
        return
    part = _part_with_element(target, element)
    if isinstance(part, ast.Name):
        yield from _uses_of_name(call, part.id, scope)
    else:
        yield _read(scope, call, f"`{ast.unparse(part)}`" if part is not None else "")


def _part_with_element(target: ast.expr, element: int) -> ast.expr | None:
    """The part of a tuple target that an element is assigned to: `weights` in `x, weights`, `rest` in `x, *rest`."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    for position, part in enumerate(target.elts):
        if isinstance(part, ast.Starred):
            return part.value
        if position == element:
            return part
    return None


def _uses_of_name(call: ast.Call, name: str, scope: FileScope) -> Iterator[ResultUse | ReturnedElement]:
    """Yields what the function does with a name that holds the element alone."""
    nesting = scope.index(Nesting)
    reads = scope.index(_NameReads).of(function_around(nesting, call) or scope.tree, name)
    if not reads:
        yield _no_read(scope, call)
    for read in reads:
        parent = nesting.parents.get(read)
        returned = None
        if isinstance(parent, ast.Tuple) and isinstance(outer := nesting.parents.get(parent), ast.Return):
            if not any(isinstance(e, ast.Starred) for e in parent.elts):
                returned = _returned_in_turn(nesting, outer, scope, parent.elts.index(read))
        yield returned or _read(scope, read)


def _uses_of_tuple_name(
    call: ast.Call, name: str, element: int, scope: FileScope
) -> Iterator[ResultUse | ReturnedElement]:
    """Yields what the function does with the element of a tuple that `name` holds."""
    nesting = scope.index(Nesting)
    reads = scope.index(_NameReads).of(function_around(nesting, call) or scope.tree, name)
    if not reads:
        yield _no_read(scope, call)
    for read in reads:
        match nesting.parents.get(read):
            case ast.Subscript(value=result, slice=index) if result is read and _includes(index, element) is False:
                yield _no_read(scope, read)
            case ast.Assign(targets=[target]) if not isinstance(target, ast.Name):
                yield from _uses_of_target(call, target, element, scope)
            case ast.Return() as statement:
                yield _returned_in_turn(nesting, statement, scope, element) or _read(scope, read)
            case _:
                yield _read(scope, read)


def _includes(index: ast.expr, element: int) -> bool | None:
    """Whether `[index]` includes an element of a tuple; None if that is unknown."""
    match index:
        case ast.Constant(value=int() as position) if position >= 0:
            return position == element
        case ast.Slice(lower=None, upper=ast.Constant(value=int() as end), step=None) if end >= 0:
            return element < end
        case ast.Slice(lower=ast.Constant(value=int() as start), upper=None, step=None) if start >= 0:
            return element >= start
    return None


def _returned_in_turn(nesting: Nesting, statement: ast.AST, scope: FileScope, element: int) -> ReturnedElement | None:
    """The same element as a result of the function around this `return`; None outside of functions."""
    function = function_around(nesting, statement)
    if function is None:
        return None
    owner = nesting.parents.get(function)
    return ReturnedElement(function, owner.name if isinstance(owner, ast.ClassDef) else "", scope, element)


def function_around(nesting: Nesting, node: ast.AST) -> Function | None:
    """The innermost function around a node; None inside a lambda or directly inside a class."""
    for _, parent in nesting.around(node):
        if isinstance(parent, Function):
            return parent
        if isinstance(parent, (ast.Lambda, ast.ClassDef)):
            return None
    return None


def _no_read(scope: FileScope, node: ast.expr) -> ResultUse:
    return ResultUse(str(scope.file or ""), node.lineno, reads=False)


def _read(scope: FileScope, node: ast.expr, target: str = "") -> ResultUse:
    return ResultUse(str(scope.file or ""), node.lineno, reads=True, target=target)


class _NameReads:
    """Finds where a function, or the whole file, reads a name. Nested functions are included."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes: dict[int, defaultdict[str, list[ast.Name]]] = {}

    def of(self, function: ast.AST, name: str) -> list[ast.Name]:
        if id(function) not in self._nodes:
            reads = self._nodes[id(function)] = defaultdict(list)
            for n in walk(function):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                    reads[n.id].append(n)
                elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
                    reads[n.target.id].append(n.target)  # `weights += 1` reads it
                elif isinstance(n, (ast.Global, ast.Nonlocal)):  # other functions may read it
                    for each in n.names:
                        reads[each].append(ast.copy_location(ast.Name(each, ast.Load()), n))
        return self._nodes[id(function)][name]
