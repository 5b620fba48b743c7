"""The names of one function: which are used at all, which statements bind a value, and who reads it by name.

Read off the text once, for every edit of the function asks. Knows what capture found; knows no edits.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autofuse.ir.graph import CHOICE, OPAQUE, Value
from autofuse.ir.steps import spend
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.syntax import walk


@dataclass(frozen=True, eq=False)
class NameRead:
    """A name that a statement reads. `of_target`: x of `x += 1`, which is written too."""

    statement: ast.stmt
    name: ast.Name
    of_target: bool


@dataclass
class NamesOfFunction:
    """What the names of a captured function are used for."""

    captured: CapturedFunction

    @cached_property
    def used(self) -> frozenset[str]:
        """Every name in the text of the function, those of arguments included."""
        found = list(walk(self.captured.function))
        names = {n.id for n in found if isinstance(n, ast.Name)}
        return frozenset(names | {a.arg for a in found if isinstance(a, ast.arg)})

    def binders(self, values: Iterable[Value]) -> list[ast.stmt]:
        """The statements that bind one of `values`, each once."""
        return list(dict.fromkeys(s for v in values for s in self.captured.binders(v)))

    def reads(self, value: Value) -> list[NameRead]:
        """Where a name is read that holds `value`, or may hold it where branches join."""
        return self._reads.get(value, [])

    @cached_property
    def _reads(self) -> dict[Value, list[NameRead]]:
        places = self.captured.places.items()
        held = {id(p.node): v for v, at in places for p in at if isinstance(p.node, ast.Name)}
        found = defaultdict[Value, list[NameRead]](list)
        for statement in (s for s in ast.walk(self.captured.function) if isinstance(s, ast.stmt)):
            for n in _own_names(statement):
                value, target = held.get(id(n)), isinstance(n.ctx, ast.Store)
                if target:
                    value = self.captured.before.get(statement, {}).get(n.id)
                for part in joined(value, (CHOICE, OPAQUE)) if value is not None else ():
                    found[part].append(NameRead(statement, n, target))
        return found


def joined(v: Value, joins: tuple[str, ...]) -> list[Value]:
    """`v`, or what it may be where branches join."""
    found, todo, seen = list[Value](), [v], set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        spend()
        if v.op in joins and v.inputs:
            todo += v.inputs[1:] if v.op == CHOICE else v.inputs
        else:
            found.append(v)
    return found


def _own_names(statement: ast.stmt) -> Iterator[ast.Name]:
    """Names read by a statement itself, not by the statements inside it."""
    todo: list[ast.AST] = [c for c in ast.iter_child_nodes(statement) if not isinstance(c, ast.stmt)]
    while todo:
        n = todo.pop()
        if isinstance(n, ast.Name) and (isinstance(n.ctx, ast.Load) or isinstance(statement, ast.AugAssign)):
            yield n
        todo += [c for c in ast.iter_child_nodes(n) if not isinstance(c, ast.stmt)]
