"""Walks syntax trees several times faster than the module `ast` does. Most of the time of a check goes into walks.

The walks visit statements, expressions and their parts. They skip operators and contexts (`Load`, `Store`), because the
node that contains them says the same.

Many checks walk the same tree. `cache_walks` stores the nodes of a tree in one list. The walk of a function or class
is then a slice of this list. Such a tree must not be changed, only copied.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

_FIELDS_WITHOUT_NODES = frozenset(
    """
    arg asname attr conversion ctx id is_async kind kwd_attrs level module name op ops rest simple tag type_comment
    type_ignores
    """.split()
)
_ALSO_WITHOUT_NODES = {ast.Global: "names", ast.Nonlocal: "names", ast.Constant: "value", ast.MatchSingleton: "value"}


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """For each class of nodes, the fields that contain a node, a list of nodes, or None."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        name_is_node = kind.__name__ == "TypeAlias"  # a class of Python 3.12 and later
        fields = tuple(
            f
            for f in kind._fields
            if (f not in _FIELDS_WITHOUT_NODES or name_is_node) and f != _ALSO_WITHOUT_NODES.get(kind)
        )
        self[kind] = fields
        return fields


_FIELDS = _Fields()


class _Getters(dict[type[ast.AST], Callable[[ast.AST], Any]]):
    """For each class of nodes, a function that returns the contents of all its fields at once."""

    def __missing__(self, kind: type[ast.AST]) -> Callable[[ast.AST], Any]:
        fields = _FIELDS[kind]
        self[kind] = attrgetter(*fields) if fields else _no_contents
        return self[kind]


def _no_contents(node: ast.AST) -> tuple[()]:
    return ()


_GETTERS = _Getters()


def contents(node: ast.AST) -> Any:
    """Return the contents of the fields of `node` that may hold nodes; not in a tuple if there is one field."""
    try:
        return _GETTERS[node.__class__](node)
    except AttributeError:  # a node that is not from a parser may lack optional fields
        return tuple(getattr(node, f, None) for f in _FIELDS[node.__class__])


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly inside `node`, in the order of their fields."""
    nodes: list[ast.AST] = []
    found = contents(node)
    for value in found if found.__class__ is tuple else (found,):
        if value.__class__ is list:
            nodes += [v for v in value if v is not None]  # in {**other}, the key is None
        elif value is not None:
            nodes.append(value)
    return nodes


_LEAVES = frozenset({ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Global, ast.Nonlocal, ast.Break, ast.Continue})
_NO_PARTS = _LEAVES | {type(None)}


def parts(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly inside `node` that may contain other nodes. Names and constants are left out."""
    nodes: list[ast.AST] = []
    found = contents(node)
    for value in found if found.__class__ is tuple else (found,):
        kind = value.__class__
        if kind is list:
            nodes += [v for v in value if v.__class__ not in _NO_PARTS]
        elif kind not in _NO_PARTS:
            nodes.append(value)
    return nodes


class _Walk:
    """The cached walk of a definition: the slice of `nodes` from `start` to `end`, beginning with the definition."""

    __slots__ = ("end", "nodes", "start")

    def __init__(self, nodes: list[ast.AST], start: int) -> None:
        self.nodes, self.start, self.end = nodes, start, start

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Return None: a copied definition may be changed, so it must not have a cached walk."""


_CACHED_TYPES = frozenset({ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})


def cache_walks(tree: ast.Module) -> None:
    """Store the walks of a tree and of its functions and classes for all later calls of `walk`."""
    if "_row" in vars(tree):
        return
    nodes: list[ast.AST] = []
    todo: list[ast.AST | _Walk | None] = [tree]
    while todo:
        inner = todo.pop()
        kind = inner.__class__
        if inner is None:
            continue
        if kind is _Walk:  # all nodes of a definition are in the list now
            inner.end = len(nodes)  # type: ignore[union-attr]
            continue
        if kind in _CACHED_TYPES:
            cached = vars(inner)["_row"] = _Walk(nodes, len(nodes))
            todo.append(cached)
        nodes.append(inner)  # type: ignore[arg-type]
        if kind in _LEAVES:
            continue
        found = contents(inner)  # type: ignore[arg-type]
        for value in found if found.__class__ is tuple else (found,):
            if value.__class__ is list:
                todo += value
            elif value is not None:
                todo.append(value)


def definition_range(definition: ast.AST) -> tuple[list[ast.AST], int, int]:
    """Return the list of all nodes of a tree with cached walks, and the range of a definition in this list."""
    cached: _Walk = vars(definition)["_row"]
    return cached.nodes, cached.start, cached.end


def drop_cached_walks(tree: ast.Module) -> None:
    """Remove the cached walks of a tree, and everything that `cached_with_tree` stores."""
    for node in walk(tree):
        if node.__class__ in _CACHED_TYPES:
            vars(node).pop("_row", None)
    for name in [n for n in vars(tree) if n.startswith("_")]:
        del vars(tree)[name]


def cached_with_tree(tree: ast.Module, name: str, make: Callable[[ast.Module], Any]) -> Any:
    """Return `make(tree)`. The result is stored as long as the walks of the tree are cached.

    Args:
        tree: The tree.
        name: The key of the result. It starts with an underscore.
        make: Computes the result.
    """
    if "_row" not in vars(tree):
        return make(tree)
    if name not in vars(tree):
        vars(tree)[name] = make(tree)
    return vars(tree)[name]


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node` and every node inside it. The order is not specified."""
    if node.__class__ in _CACHED_TYPES:
        cached = vars(node).get("_row")
        if cached is not None and cached.nodes[cached.start] is node:
            return iter(cached.nodes[cached.start : cached.end])
    return _walk_nodes(node)


def _walk_nodes(node: ast.AST) -> Iterator[ast.AST]:
    todo: list[ast.AST | None] = [node]
    while todo:
        if (inner := todo.pop()) is None:
            continue
        yield inner
        for field in _FIELDS[inner.__class__]:
            value = getattr(inner, field, None)
            if value.__class__ is list:
                todo += value
            else:
                todo.append(value)
