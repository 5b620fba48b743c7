"""Finds the names that code binds and reads, according to the scoping rules of Python.

This module finds names only. scope.py finds their meaning.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from autofuse.source.capture.syntax import children, parts, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_STATEMENT_CONTAINERS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPREHENSION_TYPES = frozenset(_COMPREHENSIONS)
_NAME_BINDERS = frozenset(
    {ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping}
)  # fmt: skip
_BINDERS = _NAME_BINDERS | {
    *_COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr,
}  # fmt: skip


def bindings(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield each name that `body` binds in its own scope, with the statement that binds it.

    Names that are bound inside nested functions, classes and comprehensions belong to other scopes and are left out.
    The target of a walrus operator in a comprehension belongs to this scope.
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
            nested: list[ast.AST] = list(node.decorator_list)
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, statement
            nested = [node.value]
        else:
            if kind in _NAME_BINDERS:
                yield from ((name, statement) for name in _names_bound_by(node))
            nested = children(node)
        inner = inner or kind in _COMPREHENSION_TYPES
        nested.reverse()
        todo += [(c, statement, inner) for c in nested]


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that `node` itself binds, without those of its children."""
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
    """Return the local names of a function, including its parameters."""
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
    if isinstance(function, ast.Lambda):
        return frozenset(names)
    return frozenset(names | _fast_bound_names(function.body)) - declared_names(function)


def _fast_bound_names(body: list[ast.stmt]) -> set[str]:
    """Return the names of `bindings(body)`. This is faster, because it skips most nodes early."""
    names: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        kind = node.__class__
        if kind is ast.Name:
            if not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                names.add(node.id)  # type: ignore[attr-defined]
        elif kind in _BINDERS:
            names |= {name for name, _ in bindings([node])}
        elif kind is not ast.Lambda and kind is not ast.Constant:
            todo += children(node)
    return names


def declared_names(function: Function) -> set[str]:
    """Return the names that a function declares global or nonlocal."""
    return {
        n
        for s in _statements_outside_definitions(function.body)
        if isinstance(s, (ast.Global, ast.Nonlocal))
        for n in s.names
    }


def _statements_outside_definitions(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements in `body` at any depth, without those of nested functions and classes."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            todo += [c for c in children(node) if isinstance(c, _STATEMENT_CONTAINERS)]


def names_read(node: ast.AST) -> frozenset[str]:
    """Return every name that is read inside `node` at any depth."""
    return frozenset(n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


@lru_cache(maxsize=1024)
def free_names(scope: ast.AST) -> frozenset[str]:
    """Return the names that a nested function, lambda or class reads from the enclosing scopes."""
    nested = names_read(scope)
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return nested - (bound_names(scope) - _names_read_by_defaults(scope))
    return nested


def _names_read_by_defaults(scope: Scope) -> set[str]:
    """Return the names that defaults of parameters read in the enclosing scope, such as `x` in `def f(x=x)`."""
    defaults = [*scope.args.defaults, *filter(None, scope.args.kw_defaults)]
    return {n for d in defaults for n in names_read(d)}


def nested_scopes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the functions, lambdas and classes inside `body`, without those nested in them.

    A lambda that is the first argument of `map` is left out, because the capture reads it as an expression.
    """
    todo = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            continue
        nested = parts(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "map" and node.args:
            nested = [c for c in nested if not (c is node.args[0] and isinstance(c, ast.Lambda))]
        todo += nested


def functions_only_called(function: Function) -> Iterator[Function]:
    """Yield the nested functions of `function` that are defined once and used only in calls in its own body."""
    inner = [s for s in function.body if isinstance(s, ast.FunctionDef)]
    if not inner:
        return
    own_nodes = list(_nodes_outside_scopes(function))
    bound = Counter(name for name, _ in bindings(function.body))
    called = Counter(n.func.id for n in own_nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    used = Counter(n.id for n in walk(function) if isinstance(n, ast.Name))
    for statement in inner:
        if bound[statement.name] == 1:
            if called[statement.name] == used[statement.name] and statement.name not in declared_names(function):
                yield statement


def _nodes_outside_scopes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of nested functions, classes, lambdas and comprehensions."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)):
            yield node
            todo += children(node)
