"""Which values of a function are computed whenever a given one is: what is done with those tells of its operands.

Knows graphs, and where statements stand. Knows nothing of rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce
from operator import and_

from autofuse.ir.graph import CHOICE, OPAQUE, Value
from autofuse.source.capture.captured import CapturedFunction, unconditional
from autofuse.source.capture.scope import blocks_of
from autofuse.source.capture.syntax import walk

_ALWAYS = ("an element", "changed by", "shares memory")  # joins of what was computed in any case
_LEAVE = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def computed_with(captured: CapturedFunction, root: Value, statement: ast.stmt) -> list[Value]:
    """Values that are computed before `root` is, or after it without a way out in between."""
    found = _reached(root)
    around = _always_run(captured.function.body, statement)
    for v, places in captured.places.items():
        if any(id(p.statement) in around and unconditional(p) for p in places):
            found |= {v}
    return sorted(found, key=lambda v: v.serial)


def _reached(root: Value) -> set[Value]:
    """`root` and what it is computed from in any case: of a choice, what both sides need."""
    masks: dict[Value, int] = {}
    todo = [root]
    while todo:
        v = todo[-1]
        if v in masks:
            todo.pop()
            continue
        missing = [i for i in v.inputs if i not in masks]
        if missing:
            todo += missing
            continue
        todo.pop()
        parts = [masks[i] for i in v.inputs]
        if v.op == CHOICE:
            parts = [parts[0], parts[1] & parts[2]]
        elif v.op == OPAQUE and not str(v.data).startswith(_ALWAYS):
            parts = [reduce(and_, parts)] if len(parts) > 1 else []
        mask = 1 << v.serial
        for part in parts:
            mask |= part
        masks[v] = mask
    whole = masks[root]
    return {v for v in masks if whole >> v.serial & 1}


def _always_run(body: list[ast.stmt], statement: ast.stmt) -> set[int]:
    """The statements that run whenever `statement` does: those before it in the blocks around it, and those after."""
    found: set[int] = set()
    block: list[ast.stmt] | None = body
    while block is not None:
        at = next((i for i, s in enumerate(block) if s is statement or any(n is statement for n in walk(s))), None)
        if at is None:
            return found
        found |= {id(s) for s in block[: at + 1]}
        if not any(isinstance(n, _LEAVE) for n in walk(block[at])) or block[at] is statement:
            found |= {id(s) for s in _until_left(block[at + 1 :])}
        inner = block[at]
        block = None if inner is statement else _block_with(inner, statement)
    return found


def _until_left(rest: list[ast.stmt]) -> Iterator[ast.stmt]:
    for s in rest:
        yield s
        if any(isinstance(n, (*_LEAVE, ast.Yield, ast.YieldFrom)) for n in walk(s)):
            return


def _block_with(outer: ast.stmt, statement: ast.stmt) -> list[ast.stmt] | None:
    for block in blocks_of(outer):
        if any(n is statement for s in block for n in walk(s)):
            return block
    return None
