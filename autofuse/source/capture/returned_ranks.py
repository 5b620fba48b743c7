"""Finds how many dimensions the result of a function has, from its text alone.

A function that branches is not read as part of its caller. Its `return` statements may still show the rank: they return
`x.reshape(a, b, c, d)`, or a parameter whose shape was unpacked into four names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.source.capture.bindings import Function, bindings
from autofuse.source.capture.syntax import walk

_FORBIDDEN = (ast.Yield, ast.YieldFrom, ast.Await, ast.FunctionDef, ast.ClassDef, ast.Lambda)
_KEEP_RANK = frozenset({"transpose", "contiguous", "clone", "expand_as", "to", "float", "type_as"})


def returned_rank(function: Function) -> int | None:
    """The rank of every result of a function; None if it is not known."""
    nodes = [n for s in function.body for n in walk(s)]
    is_plain = not function.decorator_list and not any(isinstance(n, _FORBIDDEN) for n in nodes)
    if isinstance(function, ast.AsyncFunctionDef) or not is_plain or not isinstance(function.body[-1], ast.Return):
        return None
    found = set(_ranks_of_returns(function))
    return found.pop() if len(found) == 1 else None


def _ranks_of_returns(function: Function) -> Iterator[int | None]:
    """Yield the rank that each `return` shows."""
    unbound = {a.arg for a in (*function.args.posonlyargs, *function.args.args)}
    ranks = dict[str, int]()  # of the parameters that were unpacked
    for statement in function.body:
        unbound -= {name for name, _ in bindings([statement])}
        ranks = {name: rank for name, rank in (*ranks.items(), *_unpacked_shapes(statement)) if name in unbound}
        yield from (_rank(n.value, ranks) for n in walk(statement) if isinstance(n, ast.Return))


def _unpacked_shapes(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """Yield the name whose shape a statement unpacks, with its rank: `b, n, c = x.shape`."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Attribute(value=ast.Name(id=name), attr="shape")):
            if not any(isinstance(e, ast.Starred) for e in elements):
                yield name, len(elements)


def _rank(value: ast.expr | None, ranks: dict[str, int]) -> int | None:
    match value:
        case ast.Name(id=name):
            return ranks.get(name)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments, keywords=[]):
            if name in ("reshape", "view"):
                sizes = arguments[0].elts if len(arguments) == 1 and isinstance(arguments[0], ast.Tuple) else arguments
                is_listed = len(sizes) > 1 and not any(isinstance(s, ast.Starred) for s in sizes)
                return len(sizes) if is_listed else None
            return _rank(owner, ranks) if name in _KEEP_RANK else None
    return None
