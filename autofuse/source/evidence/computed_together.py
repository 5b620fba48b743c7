"""Finds the values of a function that are always computed together with a given value.

An operation on such a value is evidence: if `x.size(-2)` always runs, x has two dimensions. This file looks at graphs
and at the positions of statements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce
from operator import and_

from autofuse.ir.graph import CHOICE, OPAQUE, Value
from autofuse.source.capture.captured import CapturedFunction, is_unconditional
from autofuse.source.capture.scope import blocks_of
from autofuse.source.capture.syntax import walk

_ALWAYS_NEED_INPUTS = ("an element", "changed by", "shares memory")  # opaque values whose inputs are all computed
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def find_values_computed_with(captured: CapturedFunction, root: Value, statement: ast.stmt) -> list[Value]:
    """Return the values that are computed before `root`, or after it with no exit in between, in graph order."""
    values = _always_needed(root)
    statements = _always_run(captured.function.body, statement)
    for v, places in captured.positions.items():
        if any(id(p.statement) in statements and is_unconditional(p) for p in places):
            values |= {v}
    return sorted(values, key=lambda v: v.serial)


def _always_needed(root: Value) -> set[Value]:
    """`root` and the values that it always needs; for a conditional value, those that both branches need."""
    masks: dict[Value, int] = {}  # one bit for each needed value, which makes unions and intersections fast
    pending = [root]
    while pending:
        v = pending[-1]
        if v in masks:
            pending.pop()
            continue
        missing = [i for i in v.inputs if i not in masks]
        if missing:
            pending += missing
            continue
        pending.pop()
        parts = [masks[i] for i in v.inputs]
        if v.op == CHOICE:
            parts = [parts[0], parts[1] & parts[2]]
        elif v.op == OPAQUE and not str(v.data).startswith(_ALWAYS_NEED_INPUTS):
            parts = [reduce(and_, parts)] if len(parts) > 1 else []
        mask = 1 << v.serial
        for part in parts:
            mask |= part
        masks[v] = mask
    root_mask = masks[root]
    return {v for v in masks if root_mask >> v.serial & 1}


def _always_run(body: list[ast.stmt], statement: ast.stmt) -> set[int]:
    """The ids of the statements that run whenever `statement` runs, before and after it, in all enclosing blocks."""
    statements: set[int] = set()
    block: list[ast.stmt] | None = body
    while block is not None:
        at = next((i for i, s in enumerate(block) if s is statement or any(n is statement for n in walk(s))), None)
        if at is None:
            return statements
        statements |= {id(s) for s in block[: at + 1]}
        if not any(isinstance(n, _EXITS) for n in walk(block[at])) or block[at] is statement:
            statements |= {id(s) for s in _before_exit(block[at + 1 :])}
        inner = block[at]
        block = None if inner is statement else _block_with(inner, statement)
    return statements


def _before_exit(rest: list[ast.stmt]) -> Iterator[ast.stmt]:
    for s in rest:
        yield s
        if any(isinstance(n, (*_EXITS, ast.Yield, ast.YieldFrom)) for n in walk(s)):
            return


def _block_with(outer: ast.stmt, statement: ast.stmt) -> list[ast.stmt] | None:
    for block in blocks_of(outer):
        if any(n is statement for s in block for n in walk(s)):
            return block
    return None
