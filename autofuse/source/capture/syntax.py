"""Walking syntax trees, several times faster than `ast` does it: reading a file is mostly this.

Visits statements, expressions and their parts, but no operators and no contexts (`Load`, `Store`), which say nothing
that the node around them does not. A tree that many ask for is walked once: `lay_out` keeps the nodes of each of its
definitions in a row, and a later walk is a piece of that row. Such a tree may not be changed, only copied. Knows
nothing of what syntax means.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

_NO_NODES = frozenset(
    """
    arg asname attr conversion ctx id is_async kind kwd_attrs level module name op ops rest simple tag type_comment
    type_ignores
    """.split()
)
_ALSO = {ast.Global: "names", ast.Nonlocal: "names", ast.Constant: "value", ast.MatchSingleton: "value"}


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each class of nodes that hold nodes, lists of them, or None."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        named = kind.__name__ == "TypeAlias"  # from Python 3.12 on, whose name is a node
        held = tuple(f for f in kind._fields if (f not in _NO_NODES or named) and f != _ALSO.get(kind))
        self[kind] = held
        return held


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly inside `node`, in the order of their fields."""
    found: list[ast.AST] = []
    for field in _FIELDS[node.__class__]:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += [v for v in value if v is not None]  # no key stands for the ** of {**more}
        elif value is not None:
            found.append(value)
    return found


_NO_PARTS = frozenset({ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Global, ast.Nonlocal, ast.Break, ast.Continue})


def parts(node: ast.AST) -> list[ast.AST]:
    """The nodes directly inside `node` that may have others inside of them: no names, and no constants."""
    found: list[ast.AST] = []
    for field in _FIELDS[node.__class__]:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += [v for v in value if v is not None and v.__class__ not in _NO_PARTS]
        elif value is not None and value.__class__ not in _NO_PARTS:
            found.append(value)
    return found


class _Row:
    """The nodes of a tree in the order of a walk, and which piece of them is inside one definition, itself first."""

    __slots__ = ("end", "nodes", "start")

    def __init__(self, nodes: list[ast.AST], start: int) -> None:
        self.nodes, self.start, self.end = nodes, start, start

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """A copied definition may be changed, so it has no row."""


_LAID_OUT = frozenset({ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})


def lay_out(tree: ast.Module) -> None:
    """Keeps the nodes of a tree in a row, for all later walks of the tree, of its functions and of its classes."""
    if "_row" in vars(tree):
        return
    nodes: list[ast.AST] = []
    todo: list[ast.AST | _Row | None] = [tree]
    while todo:
        inner = todo.pop()
        kind = inner.__class__
        if inner is None:
            continue
        if kind is _Row:
            inner.end = len(nodes)  # type: ignore[union-attr]
            continue
        if kind in _LAID_OUT:
            row = vars(inner)["_row"] = _Row(nodes, len(nodes))
            todo.append(row)
        nodes.append(inner)  # type: ignore[arg-type]
        for field in _FIELDS[kind]:  # type: ignore[index]
            value = getattr(inner, field, None)
            if value.__class__ is list:
                todo += value
            else:
                todo.append(value)


def roll_up(tree: ast.Module) -> None:
    """Forgets the row of a tree, which each of its definitions holds, and what is kept with it."""
    for node in walk(tree):
        if node.__class__ in _LAID_OUT:
            vars(node).pop("_row", None)
    for name in [n for n in vars(tree) if n.startswith("_")]:
        del vars(tree)[name]


def kept_with(tree: ast.Module, name: str, make: Callable[[ast.Module], Any]) -> Any:
    """What `make` finds in a tree, for as long as the tree is laid out; it is kept under `name`, with an underscore."""
    if "_row" not in vars(tree):
        return make(tree)
    if name not in vars(tree):
        vars(tree)[name] = make(tree)
    return vars(tree)[name]


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and every node inside it, in no order that means anything."""
    if node.__class__ in _LAID_OUT:
        row = vars(node).get("_row")
        if row is not None and row.nodes[row.start] is node:
            return iter(row.nodes[row.start : row.end])
    return _walked(node)


def _walked(node: ast.AST) -> Iterator[ast.AST]:
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
