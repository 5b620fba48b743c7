"""The names of one function: which are used, which statements bind a value, and which statements read it.

Computed once for a function, because every edit of the function needs them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autofuse.ir.graph import CHOICE, OPAQUE, Value
from autofuse.ir.steps import spend
from autofuse.source.capture.bindings import free_names, nested_scopes
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.syntax import walk


@dataclass(frozen=True, eq=False)
class NameRead:
    """A name that a statement reads. `of_target` is True for `x` in `x += 1`, which is also written."""

    statement: ast.stmt
    name: ast.Name
    of_target: bool


@dataclass
class FunctionNames:
    """The uses of the names of a captured function."""

    captured: CapturedFunction

    @cached_property
    def used(self) -> frozenset[str]:
        """Every name in the text of the function, with its parameters."""
        nodes = list(walk(self.captured.function))
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        return frozenset(names | {a.arg for a in nodes if isinstance(a, ast.arg)})

    @cached_property
    def closures(self) -> list[tuple[ast.AST, frozenset[str]]]:
        """The nested functions and lambdas, each with the names that it reads from the function."""
        return [(f, free_names(f)) for f in nested_scopes(self.captured.function.body)]

    def binders(self, values: Iterable[Value]) -> list[ast.stmt]:
        """The statements that bind one of `values`, without duplicates."""
        return list(dict.fromkeys(s for v in values for s in self.captured.binding_statements(v)))

    def reads(self, value: Value) -> list[NameRead]:
        """The reads of names that hold `value`, or that may hold it after branches join."""
        return self._reads.get(value, [])

    @cached_property
    def _reads(self) -> dict[Value, list[NameRead]]:
        places = self.captured.positions.items()
        value_of_name = {id(p.node): v for v, positions in places for p in positions if isinstance(p.node, ast.Name)}
        reads = defaultdict[Value, list[NameRead]](list)
        for statement in (s for s in ast.walk(self.captured.function) if isinstance(s, ast.stmt)):
            for name in _own_names(statement):
                value, target = value_of_name.get(id(name)), isinstance(name.ctx, ast.Store)
                # `x += 1` reads the value that `x` has before the statement.
                if target:
                    value = self.captured.before.get(statement, {}).get(name.id)
                for part in alternatives_of(value, (CHOICE, OPAQUE)) if value is not None else ():
                    reads[part].append(NameRead(statement, name, target))
        return reads


def alternatives_of(v: Value, joins: tuple[str, ...]) -> list[Value]:
    """`v` itself, or the values it may be after branches join. `joins` are the operators that join values."""
    alternatives, pending, seen = list[Value](), [v], set[Value]()
    while pending:
        v = pending.pop()
        if v in seen:
            continue
        seen.add(v)
        spend()
        if v.op in joins and v.inputs:
            pending += v.inputs[1:] if v.op == CHOICE else v.inputs
        else:
            alternatives.append(v)
    return alternatives


def _own_names(statement: ast.stmt) -> Iterator[ast.Name]:
    """Yields the names that a statement reads itself, without the statements nested in it."""
    todo: list[ast.AST] = [c for c in ast.iter_child_nodes(statement) if not isinstance(c, ast.stmt)]
    while todo:
        n = todo.pop()
        if isinstance(n, ast.Name) and (isinstance(n.ctx, ast.Load) or isinstance(statement, ast.AugAssign)):
            yield n
        todo += [c for c in ast.iter_child_nodes(n) if not isinstance(c, ast.stmt)]
