"""Finds the objects that a function writes to and that exist longer than its call: the instance, arguments, globals.

A write is an assignment to an attribute or item, an operation in place, or an assignment to a global name. A write to
an object that the function creates itself does not count.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from autofuse.source.capture.bindings import Function, bound_names, declared_names
from autofuse.source.capture.syntax import walk

_MUTATORS = frozenset(
    "append extend insert update setdefault pop popitem clear remove sort reverse add discard".split()
)
_NEW_OBJECT_FUNCTIONS = frozenset(
    "zeros ones empty full arange eye tensor clone new_zeros new_ones new_full new_empty dict list cat stack".split()
)
_NEW_OBJECTS = (
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


_RETURN_PARTS = frozenset("getattr next iter vars list reversed".split())  # builtins that return a part of an argument


@lru_cache(maxsize=1024)
def written_outer_names(function: Function) -> frozenset[str]:
    """Return the names through which a function writes to objects of its caller: `self`, arguments and globals."""
    assigned: dict[str, list[ast.expr]] = {}
    targets: list[ast.expr] = []
    created = set[str]()
    for n in walk(function):
        if (target := _write_target(n)) is not None:
            targets.append(target)
        if isinstance(n, ast.Assign):
            names = [t.id for t in n.targets if isinstance(t, ast.Name)]
            if _creates_object(n.value):
                created.update(names)
            else:
                for name in set(names):
                    assigned.setdefault(name, []).append(n.value)
    roots: set[str] = set()
    seen: dict[str, int] = {}
    for target in targets:
        _add_reached_names(roots, seen, assigned, target)
    local = (set(bound_names(function)) - _parameter_names(function)) | created
    return frozenset(roots - local) | declared_names(function)


def _write_target(node: ast.AST) -> ast.expr | None:
    """Return the expression of the object that a node writes to, or None."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target  # if this is a tensor, the operation is in place
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        in_place = name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
        return node.func.value if in_place or name in _MUTATORS else None
    return None


def _add_reached_names(
    roots: set[str], seen: dict[str, int], assigned: dict[str, list[ast.expr]], node: ast.expr, depth: int = 0
) -> None:
    """Add to `roots` the names through which `node` is reached. Local names with parts of other objects are followed.

    Args:
        roots: Receives the names.
        seen: For each name, the depth of the recursion when its assignments were followed.
        assigned: The expressions that the function assigns to each local name.
        node: An expression.
        depth: The depth of the recursion.
    """
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred, ast.NamedExpr)):
        gives_part = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _RETURN_PARTS
        if isinstance(node, ast.Call):
            node = node.args[0] if gives_part and node.args else node.func
        else:
            node = node.value
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        for side in node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse):
            _add_reached_names(roots, seen, assigned, side, depth)
    if not isinstance(node, ast.Name):
        return
    roots.add(node.id)
    if depth > 4 or seen.get(node.id, depth + 1) <= depth:
        return
    seen[node.id] = depth
    for value in assigned.get(node.id, ()):
        _add_reached_names(roots, seen, assigned, value, depth + 1)


def _parameter_names(function: Function) -> set[str]:
    arguments = function.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return names | {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}


def _creates_object(value: ast.expr) -> bool:
    """Whether an expression always creates a new object."""
    if isinstance(value, _NEW_OBJECTS):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return last in _NEW_OBJECT_FUNCTIONS
