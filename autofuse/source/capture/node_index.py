"""Finds the nodes of one class in a file, and the functions and classes around a node, without a walk of the tree.

Many checks look for a few nodes in the whole file. They share one list of all nodes, grouped by their class.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import cache_walks, cached_with_tree, definition_range

_Node = TypeVar("_Node", bound=ast.AST)

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NodeIndex:
    """The nodes of a file. Use `node_index` to create it.

    Attributes:
        nodes: All nodes, in the order of `walk`. A node is identified by its position in this list.
    """

    def __init__(self, tree: ast.Module) -> None:
        cache_walks(tree)
        self.tree = tree
        self.nodes, _, _ = definition_range(tree)
        self._positions: defaultdict[type[ast.AST], list[int]] = defaultdict(list)
        for i, kind in enumerate(map(type, self.nodes)):
            self._positions[kind].append(i)
        self._starts = self._read_definitions()

    def of(self, kind: type[_Node]) -> Iterator[_Node]:
        """Yield the nodes of a class, in the order of `walk`. Subclasses do not count."""
        return (self.nodes[i] for i in self._positions.get(kind, ()))  # type: ignore[misc]

    def of_kinds(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of several classes, in the order of `walk`."""
        return (self.nodes[i] for i in sorted(i for kind in kinds for i in self._positions.get(kind, ())))

    def functions(self) -> list[Function]:
        """Return all functions and methods, in the order of `walk`."""
        return list(self.of_kinds(ast.FunctionDef, ast.AsyncFunctionDef))  # type: ignore[arg-type]

    def placed(self, kind: type[_Node]) -> Iterator[tuple[int, _Node]]:
        """Yield the positions and the nodes of a class."""
        return ((i, self.nodes[i]) for i in self._positions.get(kind, ()))  # type: ignore[misc]

    def scopes(self, position: int) -> tuple[ast.AST, ...]:
        """Return the module and the functions around a node, outermost first."""
        return self._scopes[self._definition_around(position)]

    def definitions_around(self, position: int) -> tuple[ast.AST, ...]:
        """Return the functions and classes around a node, outermost first. A definition is not around itself."""
        around = self._definition_around(position)
        found = list[ast.AST]()
        while around:
            if self._starts[around] != position:
                found.append(self.nodes[self._starts[around]])
            around = self._parents[around]
        return tuple(reversed(found))

    def class_name(self, position: int) -> str:
        """Return the name of the innermost class around a node; "" outside of classes."""
        return self._class_names[self._definition_around(position)]

    def _definition_around(self, position: int) -> int:
        """Return the number of the innermost function or class around a node; 0 for the module."""
        around = bisect_right(self._starts, position) - 1
        while self._ends[around] <= position:
            around = self._parents[around]
        return around

    def _read_definitions(self) -> list[int]:
        """Record the range, the parent and the scopes of the module and of each definition. Return their starts."""
        ranges = sorted(definition_range(node)[1:] for kind in _DEFINITIONS for node in self.of(kind))
        starts, self._ends, self._parents = [0], [len(self.nodes)], [0]
        self._scopes: list[tuple[ast.AST, ...]] = [(self.tree,)]
        self._class_names = [""]
        for start, end in ranges:
            parent = len(starts) - 1
            while self._ends[parent] <= start:
                parent = self._parents[parent]
            node = self.nodes[start]
            is_class = isinstance(node, ast.ClassDef)
            starts.append(start)
            self._ends.append(end)
            self._parents.append(parent)
            self._scopes.append(self._scopes[parent] if is_class else (*self._scopes[parent], node))
            self._class_names.append(node.name if isinstance(node, ast.ClassDef) else self._class_names[parent])
        return starts


def node_index(tree: ast.Module) -> NodeIndex:
    """Return the index of a file. It is created once."""
    index: NodeIndex = cached_with_tree(tree, "_nodes", NodeIndex)
    return index
