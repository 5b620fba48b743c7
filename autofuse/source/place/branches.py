"""Values that only a branch can name, kept under new names for a call that stands behind it.

A mask that is made in an `if` and deleted, or whose name is taken by another one, is bound to a new name by the
statement that applied it. Knows canonical values and tests; knows no text and changes none (placement.py does).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autofuse.canonical import View
from autofuse.ir.graph import CHOICE, CONST, ITEM, NOT, TUPLE, Value
from autofuse.ir.vocabulary import OPS
from autofuse.match.site import Site
from autofuse.source.capture.captured import CapturedFunction, ValuePosition, unconditional
from autofuse.source.targets.express import Assumed, Unwritable


@dataclass(frozen=True, eq=False)
class Branch:
    """One side of an `if`, and a place in it that always runs there; `test` is `truth` exactly where it runs."""

    statement: ast.If
    place: ValuePosition
    test: Value
    truth: bool
    computed: frozenset[Value]  # canonical tensors that are surely computed there

    @property
    def assumed(self) -> Assumed:
        return ((self.test, self.truth),)


@dataclass(frozen=True, eq=False)
class KeptName:
    """A canonical value that `name` holds where the branch ran; it is None elsewhere."""

    value: Value
    name: str
    branch: Branch


def branches_before(
    captured: CapturedFunction,
    view: View,
    site: Site,
    root: ValuePosition,
    blocks: Mapping[int, tuple[list[ast.stmt], int]],
) -> Iterator[Branch]:
    """Sides of an `if` that stands before the root in its block, or in one around it, where a part of the site goes."""
    for value in sorted(site.doomed.values, key=lambda v: v.serial):
        for place in dict.fromkeys(captured.places.get(value, [])):
            if place.inlined or place.inner or place.region != root.region or not unconditional(place):
                continue
            if not isinstance(place.statement, (ast.Assign, ast.AugAssign, ast.Expr)):
                continue
            block, _ = blocks.get(id(place.statement), ([], 0))
            for statement, tested in captured.tests.items():
                if not isinstance(statement, ast.If) or not any(block is b for b in (statement.body, statement.orelse)):
                    continue
                if not _follows(root.statement, statement, blocks):
                    continue
                test, truth = view.of(tested), block is statement.body
                while test.op == NOT:
                    test, truth = test.inputs[0], not truth
                yield Branch(statement, place, test, truth, _computed_by(view, value))


def _follows(later: ast.stmt, first: ast.stmt, blocks: Mapping[int, tuple[list[ast.stmt], int]]) -> bool:
    """Whether `first` always runs before `later`, on the way to it."""
    block, at = blocks.get(id(first), ([], 0))
    return any(n is later for s in block[at + 1 :] for n in ast.walk(s))


def _computed_by(view: View, applied: Value) -> frozenset[Value]:
    """The tensors that the program needs for `applied`, whatever its tests say, and what their opposites keep."""
    operands = [view.of(i) for i in applied.inputs]
    found = {_core(p) for o in operands for p in _parts(o) if p.op in OPS or p.op == ITEM and p.inputs[1].op == TUPLE}
    if applied.op in ("masked_fill", "where", "add"):  # neither takes None
        masks = [o for o in operands if o.op not in (CHOICE, CONST)]
        found |= {_core(m) for o in masks for m in (o, view.make("invert", o))}
    return frozenset(found)


def _core(v: Value) -> Value:
    """`v` without what only says how a mask is read."""
    while v.op in ("kept", "bool", "invert", "identity"):
        v = v.inputs[0]
    return v


def _parts(v: Value) -> Iterator[Value]:
    """`v` and what it is surely computed from: the sides of a choice may not be."""
    todo, seen = [v], set[Value]()
    while todo:
        part = todo.pop()
        if part in seen or part.op == CHOICE:
            continue
        seen.add(part)
        todo += part.inputs
        yield part


def wanted(reason: Unwritable, branch: Branch, captures: Iterable[Value]) -> list[Value]:
    """What `branch` may have to keep, the largest first, given what could not be written."""
    found: list[Value] = []
    if any(v is branch.test for v, _ in reason.within):  # any value of the branch tells whether it ran
        found += [part for v in captures for part in _under(v, branch, set())]
    found += [v for v, assumed in reversed(reason.within) if branch.assumed[0] in assumed]
    return [v for v in found if _core(v) in branch.computed]


def _under(v: Value, branch: Branch, seen: set[Value]) -> Iterator[Value]:
    """The values that are used where the test of `branch` says so, and the parts of each."""
    if v in seen or v.op == CONST:
        return
    seen.add(v)
    if v.op == CHOICE and v.inputs[0] is branch.test:
        todo = [v.inputs[1] if branch.truth else v.inputs[2]]
        while todo:
            part = todo.pop(0)
            yield part
            todo += part.inputs[1:] if part.op == CHOICE else part.inputs
    for part in v.inputs:
        yield from _under(part, branch, seen)
