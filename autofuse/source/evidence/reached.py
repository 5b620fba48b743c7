"""What surely runs where an edited place runs, how values are made from the module's attributes, and their names.

Knows a captured function; judges nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import LEAF
from autofuse.ir.graph import ATTRIBUTE, CHOICE, PARAMETER, Value
from autofuse.source.capture.captured import CapturedFunction, unconditional
from autofuse.source.evidence.claim import Claim

_LONGEST = 40  # characters of an expression that a message repeats


def surely_run(captured: CapturedFunction, root: Value) -> Iterator[Value]:
    """The values that are computed whenever `root` is: on the way to it, or by statements of the function's block."""
    body = {id(s) for s in captured.function.body}
    todo = [root]
    for v, places in captured.places.items():
        if any(id(p.statement) in body and not hasattr(p.statement, "body") and unconditional(p) for p in places):
            todo.append(v)
    seen: set[Value] = set()
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            yield v
            todo += v.inputs[:1] if v.op == CHOICE else v.inputs


def programs_own(claim: Claim, canonical: Value) -> list[Value]:
    """The program's values that a canonical value stands for."""
    leaf = canonical.op == LEAF and isinstance(canonical.data, Value)
    return [canonical.data] if leaf else claim.view.originals(canonical)  # type: ignore[list-item]


def attribute_of_self(v: Value) -> str | None:
    """`name` of `self.name`."""
    owner = v.inputs[0] if v.op == ATTRIBUTE else None
    return str(v.data) if owner is not None and owner.op == PARAMETER else None


def named(claim: Claim, canonical: Value, otherwise: str) -> str:
    """A captured value in the words of the file: its text, or what it is to the rule where that is long."""
    for v in programs_own(claim, canonical):
        if v.op == PARAMETER:
            return f"`{v.data}`"
        for place in claim.captured.places.get(v, []):
            text = ast.unparse(place.node)
            if len(text) <= _LONGEST:
                return f"`{text}`"
    return otherwise
