"""Keeps values that only one branch of an `if` can name, for a call after the `if`.

For example, a branch makes a mask and deletes it, or assigns another value to its name. Then the statement in the
branch that applied the mask is replaced by an assignment of the mask to a new name. This module works on canonical
values and tests; placement.py changes the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autofuse.canonical import View
from autofuse.ir.graph import CHOICE, CONST, ITEM, NOT, TUPLE, Value
from autofuse.ir.vocabulary import OPS
from autofuse.match.site import Site
from autofuse.source.capture.captured import CapturedFunction, ValuePosition, is_unconditional
from autofuse.source.targets.speller import Assumed, Unwritable


@dataclass(frozen=True, eq=False)
class Branch:
    """One branch of an `if`, and a position in it that every run of the branch reaches.

    Attributes:
        statement: the `if`.
        place: the position.
        test: the canonical value that is tested.
        truth: the value of `test` for which the branch runs.
        computed: canonical tensors that every run of the branch computes.
    """

    statement: ast.If
    place: ValuePosition
    test: Value
    truth: bool
    computed: frozenset[Value]

    @property
    def assumed(self) -> Assumed:
        return ((self.test, self.truth),)


@dataclass(frozen=True, eq=False)
class KeptName:
    """A new name that holds a canonical value after the branch ran. If the branch did not run, it is None."""

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
    """Yields the branches that compute a part of the site, of each `if` that always runs before `root` is reached."""
    for value in sorted(site.removed.values, key=lambda v: v.serial):
        for place in dict.fromkeys(captured.positions.get(value, [])):
            if place.inlined or place.inner or place.region != root.region or not is_unconditional(place):
                continue
            # Only a simple statement can be replaced by the assignment to the new name.
            if not isinstance(place.statement, (ast.Assign, ast.AugAssign, ast.Expr)):
                continue
            block, _ = blocks.get(id(place.statement), ([], 0))
            for statement, test_value in captured.tests.items():
                if not isinstance(statement, ast.If) or not any(block is b for b in (statement.body, statement.orelse)):
                    continue
                if not _always_runs_before(root.statement, statement, blocks):
                    continue
                test, truth = view.of(test_value), block is statement.body
                # `if not flag:` runs if `flag` is False.
                while test.op == NOT:
                    test, truth = test.inputs[0], not truth
                yield Branch(statement, place, test, truth, _computed_by(view, value))


def _always_runs_before(later: ast.stmt, earlier: ast.stmt, blocks: Mapping[int, tuple[list[ast.stmt], int]]) -> bool:
    """Whether `earlier` always runs before `later` is reached."""
    block, index = blocks.get(id(earlier), ([], 0))
    return any(n is later for s in block[index + 1 :] for n in ast.walk(s))


def _computed_by(view: View, applied: Value) -> frozenset[Value]:
    """The tensors that `applied` needs whatever the tests are. The opposites of masks are included."""
    operands = [view.of(i) for i in applied.inputs]
    tensors = {
        _without_conversions(p)
        for o in operands
        for p in _certain_parts(o)
        if p.op in OPS or p.op == ITEM and p.inputs[1].op == TUPLE
    }
    if applied.op in ("masked_fill", "where", "add"):  # these operators never accept None
        masks = [o for o in operands if o.op not in (CHOICE, CONST)]
        tensors |= {_without_conversions(m) for o in masks for m in (o, view.make("invert", o))}
    return frozenset(tensors)


def _without_conversions(v: Value) -> Value:
    """`v` without the steps that only convert or invert a mask."""
    while v.op in ("kept", "bool", "invert", "identity"):
        v = v.inputs[0]
    return v


def _certain_parts(v: Value) -> Iterator[Value]:
    """Yields `v` and the values it is always computed from. The two sides of a choice are left out."""
    todo, seen = [v], set[Value]()
    while todo:
        part = todo.pop()
        if part in seen or part.op == CHOICE:
            continue
        seen.add(part)
        todo += part.inputs
        yield part


def values_to_keep(reason: Unwritable, branch: Branch, captures: Iterable[Value]) -> list[Value]:
    """The values that `branch` may have to keep for an operand that cannot be written, the largest first."""
    candidates: list[Value] = []
    if any(v is branch.test for v, _ in reason.within):  # any value of the branch, not being None, shows that it ran
        candidates += [part for v in captures for part in _values_in_branch(v, branch, set())]
    candidates += [v for v, assumed in reversed(reason.within) if branch.assumed[0] in assumed]
    return [v for v in candidates if _without_conversions(v) in branch.computed]


def _values_in_branch(v: Value, branch: Branch, seen: set[Value]) -> Iterator[Value]:
    """Yields the values that are used if the branch runs, and their parts."""
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
        yield from _values_in_branch(part, branch, seen)
