"""What reading one function gives: its graph, and the way back from each value to the text.

Pure data: filled by function_capture.py, read by the writer.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from autofuse.ir.facts import Known
from autofuse.ir.graph import Graph, Value
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import walk

Region = tuple[ast.AST, ...]  # the loops, `with` and `try` blocks around a statement, outermost first


@dataclass(frozen=True, eq=False)
class ValuePosition:
    """Where a value stands: its expression, the statement around it, and what names held just before.

    `inlined`: the expression is a call of a helper, and the value was computed inside it. `forgets` counts the
    assignments to attributes that came before.
    """

    node: ast.expr
    statement: ast.stmt
    names: Mapping[str, Value]
    region: Region = ()
    inlined: bool = False
    inner: bool = False  # a step of a chain of layers, none of which is written here
    forgets: int = 0


def unconditional(place: ValuePosition) -> bool:
    """Whether the expression is evaluated whenever its statement runs, once."""
    return id(place.node) not in _in_branches(place.statement)


_BRANCHING = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@lru_cache(maxsize=1024)
def _in_branches(statement: ast.stmt) -> frozenset[int]:
    """The expressions of a statement that may not be evaluated, or more than once."""
    around = [n for n in walk(statement) if isinstance(n, _BRANCHING)]
    return frozenset(id(c) for n in around for c in walk(n))


@dataclass(frozen=True, eq=False)
class HelperText:
    """An expression of a helper that is read where it is called: its value is computed in the caller's `statement`.

    `names` are those of the helper, as they were there; `outside` those of the caller, before the statement.
    """

    node: ast.expr
    helper: Function
    names: Mapping[str, Value]
    statement: ast.stmt
    outside: Mapping[str, Value]
    region: Region
    forgets: int


@dataclass(frozen=True, eq=False)
class Chain:
    """What one call of a Sequential computes: of its argument, layer by layer, with the index of each layer.

    `made` is where its layers are written.
    """

    made: ast.expr
    argument: Value
    steps: tuple[tuple[tuple[int, ...], Value], ...]


@dataclass
class CapturedFunction:
    """One function's graph and the way back from each value to the text."""

    function: Function
    graph: Graph = field(default_factory=Graph)
    places: dict[Value, list[ValuePosition]] = field(default_factory=dict)
    helper_texts: dict[Value, list[HelperText]] = field(default_factory=dict)
    known: dict[Value, Known] = field(default_factory=dict)
    assigned: dict[ast.stmt, list[Value]] = field(default_factory=dict)  # what each statement binds
    before: dict[ast.stmt, Mapping[str, Value]] = field(default_factory=dict)  # what names held before each statement
    deleted: dict[ast.stmt, list[Value]] = field(default_factory=dict)  # what each `del` unbinds
    effects: set[ast.stmt] = field(default_factory=set)  # statements that do more than bind names
    called_inside: dict[ast.stmt, list[tuple[ast.expr, Value]]] = field(default_factory=dict)  # by calls of helpers
    chains: dict[ast.expr, Chain] = field(default_factory=dict)  # calls of a Sequential
    tests: dict[ast.stmt, Value] = field(default_factory=dict)  # what each `if` tests
    lines: dict[Value, int] = field(default_factory=dict)  # where values leave the function
    forgotten: list[int] = field(default_factory=list)  # how many values there were when attributes were assigned
    spelled: dict[Value, set[str]] = field(default_factory=dict)  # by which names operations were called, and keywords
    returned: Value | None = None
    _binders: dict[Value, list[ast.stmt]] = field(default_factory=dict)

    def binders(self, value: Value) -> list[ast.stmt]:
        """The statements that bind `value`, each as often as it does. Asked once all is captured."""
        if not self._binders:
            for statement, values in self.assigned.items():
                for v in values:
                    self._binders.setdefault(v, []).append(statement)
        return self._binders.get(value, [])

    def current(self, read: Value, place: ValuePosition) -> bool:
        """Whether what `read` found in an attribute or a container may still be there at `place`."""
        return bisect_right(self.forgotten, read.serial) == place.forgets
