"""The result of capturing one function: its graph, and the positions of each value in the text.

This module only defines data. function_capture.py fills it, and the codemod reads it.
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

Region = tuple[ast.AST, ...]  # the loops, `with` blocks and `try` blocks around a statement, outermost first


@dataclass(frozen=True, eq=False)
class ValuePosition:
    """A position in the text where a value is computed.

    Attributes:
        node: The expression.
        statement: The statement that contains the expression.
        names: The values of all names before the statement.
        region: The loops and blocks around the statement.
        inlined: Whether the expression is a call of a helper, and the value is computed inside the helper.
        inner: Whether the value is an intermediate result of a Sequential. The text has no expression for it.
        attribute_writes: The number of assignments to attributes before the expression.
    """

    node: ast.expr
    statement: ast.stmt
    names: Mapping[str, Value]
    region: Region = ()
    inlined: bool = False
    inner: bool = False
    attribute_writes: int = 0


def is_unconditional(position: ValuePosition) -> bool:
    """Whether the expression is evaluated exactly once each time its statement runs."""
    return id(position.node) not in _in_branches(position.statement)


_BRANCHING = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@lru_cache(maxsize=1024)
def _in_branches(statement: ast.stmt) -> frozenset[int]:
    """Return the ids of the nodes in a statement that may run never or several times."""
    branching = [n for n in walk(statement) if isinstance(n, _BRANCHING)]
    return frozenset(id(c) for n in branching for c in walk(n))


@dataclass(frozen=True, eq=False)
class HelperText:
    """An expression of a helper. It computes a value because a statement calls the helper.

    Attributes:
        node: The expression in the helper.
        helper: The helper.
        names: The values of the helper's names at the expression.
        statement: The statement of the caller.
        caller_names: The values of the caller's names before the statement.
        region: The loops and blocks around the statement.
        attribute_writes: The number of assignments to attributes before the expression.
    """

    node: ast.expr
    helper: Function
    names: Mapping[str, Value]
    statement: ast.stmt
    caller_names: Mapping[str, Value]
    region: Region
    attribute_writes: int


@dataclass(frozen=True, eq=False)
class Chain:
    """The computation of one call of a Sequential.

    Attributes:
        constructor: The expression that constructs the Sequential.
        argument: The argument of the call.
        steps: The path and the result of each layer, in order.
    """

    constructor: ast.expr
    argument: Value
    steps: tuple[tuple[tuple[int, ...], Value], ...]


@dataclass
class CapturedFunction:
    """The graph of one function, and the positions of its values in the text.

    Attributes:
        function: The function.
        graph: Its graph.
        positions: The positions of each value in the function.
        helper_texts: The expressions of helpers that compute each value.
        known: Facts about values.
        assigned: The values that each statement binds to names.
        before: The values of all names before each statement.
        deleted: The values that each `del` statement unbinds.
        effects: The statements that do more than bind names.
        helper_calls: For each statement, the calls of unknown functions inside of the helpers that it calls.
        chains: The calls of a Sequential.
        tests: The value that each `if` tests.
        lines: The line where each escaping value leaves the function.
        attribute_write_serials: The number of values in the graph at each assignment to an attribute.
        spellings: The names under which each operation is called, and its keyword arguments.
        returned: The value that the function returns.
        unpacked: For each value that is unpacked into a fixed number of targets, that number.
    """

    function: Function
    graph: Graph = field(default_factory=Graph)
    positions: dict[Value, list[ValuePosition]] = field(default_factory=dict)
    helper_texts: dict[Value, list[HelperText]] = field(default_factory=dict)
    known: dict[Value, Known] = field(default_factory=dict)
    assigned: dict[ast.stmt, list[Value]] = field(default_factory=dict)
    before: dict[ast.stmt, Mapping[str, Value]] = field(default_factory=dict)
    deleted: dict[ast.stmt, list[Value]] = field(default_factory=dict)
    effects: set[ast.stmt] = field(default_factory=set)
    helper_calls: dict[ast.stmt, list[tuple[ast.expr, Value]]] = field(default_factory=dict)
    chains: dict[ast.expr, Chain] = field(default_factory=dict)
    tests: dict[ast.stmt, Value] = field(default_factory=dict)
    lines: dict[Value, int] = field(default_factory=dict)
    attribute_write_serials: list[int] = field(default_factory=list)
    spellings: dict[Value, set[str]] = field(default_factory=dict)
    returned: Value | None = None
    unpacked: dict[Value, int] = field(default_factory=dict)
    _binders: dict[Value, list[ast.stmt]] = field(default_factory=dict)

    def binding_statements(self, value: Value) -> list[ast.stmt]:
        """Return the statements that bind `value`, each as often as it does. Call this only after the capture."""
        if not self._binders:
            for statement, values in self.assigned.items():
                for v in values:
                    self._binders.setdefault(v, []).append(statement)
        return self._binders.get(value, [])

    def is_current(self, read: Value, position: ValuePosition) -> bool:
        """Whether an attribute or item that `read` loaded is not overwritten before `position`."""
        return bisect_right(self.attribute_write_serials, read.serial) == position.attribute_writes
