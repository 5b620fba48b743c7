"""What a function writes to that outlives its call: attributes, arguments, globals, in place or by name.

Knows syntax only: a tensor that the function made itself is its own affair.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from autofuse.source.capture.bindings import Function, bound_names, declared
from autofuse.source.capture.syntax import walk

_MUTATORS = frozenset(
    "append extend insert update setdefault pop popitem clear remove sort reverse add discard".split()
)
_MAKERS = frozenset(
    "zeros ones empty full arange eye tensor clone new_zeros new_ones new_full new_empty dict list cat stack".split()
)
_MADE_ANEW = (
    ast.BinOp,
    ast.Dict,
    ast.List,
    ast.ListComp,
    ast.DictComp,
    ast.Constant,
    ast.Set,
    ast.SetComp,
    ast.Compare,
)


_GIVE_PARTS = frozenset("getattr next iter vars list reversed".split())  # builtins that give a part of an argument


@lru_cache(maxsize=1024)
def written_roots(function: Function) -> frozenset[str]:
    """The names by which a function reaches what it writes to, if that is not its own: self, arguments, globals."""
    own = _made_here(function)
    roots = {r for n in walk(function) if (target := _written(n)) is not None for r in _roots(function, target)}
    return frozenset(roots - own) | declared(function)


def _written(node: ast.AST) -> ast.expr | None:
    """What a node writes to."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target  # a tensor is written in place
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        in_place = name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
        return node.func.value if in_place or name in _MUTATORS else None
    return None


def _roots(function: Function, node: ast.expr, depth: int = 0) -> Iterator[str]:
    """The names that `node` is reached by, through local names that hold parts of others."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred, ast.NamedExpr)):
        gives_part = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _GIVE_PARTS
        if isinstance(node, ast.Call):
            node = node.args[0] if gives_part and node.args else node.func
        else:
            node = node.value
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        for side in node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse):
            yield from _roots(function, side, depth)
    if not isinstance(node, ast.Name):
        return
    yield node.id
    if depth > 4:
        return
    for s in walk(function):
        if isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in s.targets):
            if not _is_new(s.value):
                yield from _roots(function, s.value, depth + 1)


def _made_here(function: Function) -> set[str]:
    """Local names that are no arguments: what they were assigned is asked on its own."""
    arguments = function.args
    given = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    given |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    rebound = {
        t.id
        for s in walk(function)
        if isinstance(s, ast.Assign) and _is_new(s.value)
        for t in s.targets
        if isinstance(t, ast.Name)
    }
    return (set(bound_names(function)) - given) | rebound


def _is_new(value: ast.expr) -> bool:
    if isinstance(value, _MADE_ANEW):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return last in _MAKERS
