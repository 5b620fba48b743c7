"""Facts about the values of a site: which are always computed, where they come from, and how to name them in a message.

This file reads a captured function. It judges nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import LEAF
from autofuse.ir.graph import ATTRIBUTE, CHOICE, PARAMETER, Value
from autofuse.source.capture.captured import CapturedFunction, is_unconditional
from autofuse.source.evidence.claim import Claim

_MAX_TEXT = 40  # characters of an expression that a message quotes


def find_always_computed(captured: CapturedFunction, root: Value) -> Iterator[Value]:
    """Yield the values that are computed whenever `root` is.

    These are its inputs, and the values of statements in the function's own block.
    """
    body = {id(s) for s in captured.function.body}
    pending = [root]
    for v, places in captured.positions.items():
        if any(id(p.statement) in body and not hasattr(p.statement, "body") and is_unconditional(p) for p in places):
            pending.append(v)
    visited: set[Value] = set()
    while pending:
        v = pending.pop()
        if v not in visited:
            visited.add(v)
            yield v
            pending += v.inputs[:1] if v.op == CHOICE else v.inputs


def program_values(claim: Claim, canonical: Value) -> list[Value]:
    """The values of the program that a canonical value represents."""
    is_leaf = canonical.op == LEAF and isinstance(canonical.data, Value)
    return [canonical.data] if is_leaf else claim.view.originals(canonical)  # type: ignore[list-item]


def self_attribute_name(v: Value) -> str | None:
    """The attribute name, if `v` is an attribute of a parameter: `name` of `self.name`."""
    owner = v.inputs[0] if v.op == ATTRIBUTE else None
    return str(v.data) if owner is not None and owner.op == PARAMETER else None


def describe_value(claim: Claim, canonical: Value, otherwise: str) -> str:
    """Return a captured value as the file writes it, for a message.

    Args:
        claim: the edit.
        canonical: the value.
        otherwise: the description if the text of the value is too long: "the mask".
    """
    for v in program_values(claim, canonical):
        if v.op == PARAMETER:
            return f"`{v.data}`"
        for place in claim.captured.positions.get(v, []):
            text = ast.unparse(place.node)
            if len(text) <= _MAX_TEXT:
                return f"`{text}`"
    return otherwise
