"""What a function writes to that outlives its call: attributes, arguments, globals, in place or by name.

Knows syntax only: a tensor that the function made itself is its own affair.
"""

from __future__ import annotations

import ast
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
    assigned: dict[str, list[ast.expr]] = {}
    targets: list[ast.expr] = []
    made = set[str]()
    for n in walk(function):
        if (target := _written(n)) is not None:
            targets.append(target)
        if isinstance(n, ast.Assign):
            names = [t.id for t in n.targets if isinstance(t, ast.Name)]
            if _is_new(n.value):
                made.update(names)
            else:
                for name in set(names):
                    assigned.setdefault(name, []).append(n.value)
    roots: set[str] = set()
    seen: dict[str, int] = {}
    for target in targets:
        _add_roots(roots, seen, assigned, target)
    own = (set(bound_names(function)) - _given(function)) | made
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


def _add_roots(
    roots: set[str], seen: dict[str, int], assigned: dict[str, list[ast.expr]], node: ast.expr, depth: int = 0
) -> None:
    """Adds the names that `node` is reached by, through local names that hold parts of others.

    `seen` says of each name at which depth what it was assigned has been followed.
    """
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred, ast.NamedExpr)):
        gives_part = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _GIVE_PARTS
        if isinstance(node, ast.Call):
            node = node.args[0] if gives_part and node.args else node.func
        else:
            node = node.value
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        for side in node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse):
            _add_roots(roots, seen, assigned, side, depth)
    if not isinstance(node, ast.Name):
        return
    roots.add(node.id)
    if depth > 4 or seen.get(node.id, depth + 1) <= depth:
        return
    seen[node.id] = depth
    for value in assigned.get(node.id, ()):
        _add_roots(roots, seen, assigned, value, depth + 1)


def _given(function: Function) -> set[str]:
    """The names of a function's arguments."""
    arguments = function.args
    given = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return given | {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}


def _is_new(value: ast.expr) -> bool:
    if isinstance(value, _MADE_ANEW):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return last in _MAKERS
