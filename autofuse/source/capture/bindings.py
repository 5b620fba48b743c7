"""Which names a block of syntax binds and which it reads, by Python's scoping rules.

Knows syntax only: what a name means is the business of scope.py.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from autofuse.source.capture.syntax import children, parts, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_HOLD_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPREHENDING = frozenset(_COMPREHENSIONS)
_NAMING = frozenset(
    {ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping}
)  # fmt: skip
_BINDING = _NAMING | {
    *_COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr,
}  # fmt: skip


def bindings(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Each name that `body` binds in its own scope, with the statement (or handler, alias list, ...) that does.

    What nested functions, classes and comprehensions bind is theirs; a walrus in a comprehension is not.
    """
    todo: list[tuple[ast.AST, ast.AST, bool]] = [(n, n, False) for n in reversed(list(body))]
    while todo:
        node, statement, inner = todo.pop()
        kind = node.__class__
        if kind is ast.Name:
            if not inner and not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                yield node.id, statement  # type: ignore[attr-defined]
            continue
        if kind is ast.Constant or kind is ast.Lambda:
            continue
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            inside: list[ast.AST] = list(node.decorator_list)
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, statement
            inside = [node.value]
        else:
            if kind in _NAMING:
                yield from ((name, statement) for name in _bound_here(node))
            inside = children(node)
        inner = inner or kind in _COMPREHENDING
        inside.reverse()
        todo += [(c, statement, inner) for c in inside]


def _bound_here(node: ast.AST) -> Iterator[str]:
    """Names bound by `node` itself, not by what is inside it."""
    match node:
        case ast.Import(names=names):
            yield from (a.asname or a.name.partition(".")[0] for a in names)
        case ast.ImportFrom(names=names):
            yield from (a.asname or a.name for a in names if a.name != "*")
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


@lru_cache(maxsize=1024)
def bound_names(function: Scope) -> frozenset[str]:
    """The local names of a function, its parameters included; without what it declares global or nonlocal."""
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
    if isinstance(function, ast.Lambda):
        return frozenset(names)
    return frozenset(names | _bound_in(function.body)) - declared(function)


def _bound_in(body: list[ast.stmt]) -> set[str]:
    """The names of `bindings(body)`; this is asked of every function, so what binds nothing is passed over early."""
    names: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        kind = node.__class__
        if kind is ast.Name:
            if not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                names.add(node.id)  # type: ignore[attr-defined]
        elif kind in _BINDING:
            names |= {name for name, _ in bindings([node])}
        elif kind is not ast.Lambda and kind is not ast.Constant:
            todo += children(node)
    return names


def declared(function: Function) -> set[str]:
    """Names that a function declares global or nonlocal."""
    return {n for s in _own_statements(function.body) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            todo += [c for c in children(node) if isinstance(c, _HOLD_STATEMENTS)]


def names_read(node: ast.AST) -> frozenset[str]:
    """Every name that is read anywhere inside `node`."""
    return frozenset(n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


@lru_cache(maxsize=1024)
def free_names(scope: ast.AST) -> frozenset[str]:
    """Names that a nested function, lambda or class takes from around it."""
    inside = names_read(scope)
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return inside - (bound_names(scope) - _shadowed_by_default(scope))
    return inside


def _shadowed_by_default(scope: Scope) -> set[str]:
    """Names that defaults read outside the function: `def f(x=x)`."""
    defaults = [*scope.args.defaults, *filter(None, scope.args.kw_defaults)]
    return {n for d in defaults for n in names_read(d)}


def nested_scopes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Functions, lambdas and classes directly inside `body`, not those inside them.

    A lambda given straight to `map` runs there and then; it is not counted.
    """
    todo = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            continue
        inside = parts(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "map" and node.args:
            inside = [c for c in inside if not (c is node.args[0] and isinstance(c, ast.Lambda))]
        todo += inside


def called_only(function: Function) -> Iterator[Function]:
    """Functions defined once in the body of `function`, whose names are never used but to call them there."""
    inner = [s for s in function.body if isinstance(s, ast.FunctionDef)]
    if not inner:
        return
    own = list(_own_expressions(function))
    bound = Counter(name for name, _ in bindings(function.body))
    called = Counter(n.func.id for n in own if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    used = Counter(n.id for n in walk(function) if isinstance(n, ast.Name))
    for statement in inner:
        if bound[statement.name] == 1:
            if called[statement.name] == used[statement.name] and statement.name not in declared(function):
                yield statement


def _own_expressions(function: Function) -> Iterator[ast.AST]:
    """Everything inside a function that is not inside another one."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)):
            yield node
            todo += children(node)
