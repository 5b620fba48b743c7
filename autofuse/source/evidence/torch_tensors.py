"""Checks that each operand is a torch tensor. Code for numpy arrays can have the same spelling.

origins.py finds out what the operands are at the place of the edit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import CONST, PARAMETER, Value
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.scope import blocks_of
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.annotations import Origin
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.computed_together import find_values_computed_with
from autofuse.source.evidence.origins import Origins, is_used_as_array
from autofuse.source.targets.speller import find_call_places

KnownOrigins = dict[Value, Origin]


def operands_are_torch_tensors(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if an operand is an array of another library; reports operands that may not be torch tensors."""
    origins = _known_origins(claim)
    for name, is_required in _tensor_captures(claim):
        v = claim.site.captures[name]
        origin = _origin_of(claim, v, origins)
        if origin is Origin.TENSOR or not is_required and claim.view.number(v):
            continue
        culprit = next(iter(claim.view.originals(v)), None)
        if origin is Origin.ARRAY or culprit is not None and is_used_as_array(claim.captured, culprit):
            yield Fails(because(tensors.OTHER_ARRAY), culprit)
        elif is_required:
            yield Missing(f"assumes that {_source_name(claim, culprit, name)} is a torch tensor")


def _tensor_captures(claim: Claim) -> Iterator[tuple[str, bool]]:
    """Yields the captures that the rule annotates as tensors, and whether each must be a tensor: no `Tensor | None`."""
    annotations = claim.site.rule.rule.before.__annotations__
    for name in claim.site.captures:
        annotation = str(annotations.get(name, ""))
        if "Tensor" in annotation:
            yield name, annotation == "Tensor"


def _known_origins(claim: Claim) -> KnownOrigins:
    """Returns the origins of values that are known where the result is computed."""
    place = find_call_places(claim.captured, claim.site)[0]
    origins = Origins(claim.defined, claim.captured)
    uses = find_values_computed_with(claim.captured, claim.site.root, place.statement)
    return origins.at(uses, dict(_origins_by_tests(claim, origins, place.statement)))


def _origin_of(claim: Claim, v: Value, origins: KnownOrigins) -> Origin | None:
    """Returns the origin of a canonical value, by the program's values for it, or by its inputs."""
    todo, seen = [v], set[Value]()
    possible: set[Origin | None] = set()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        program_values = [v.data] if isinstance(v.data, Value) else claim.view.originals(v)
        known_origins = {origins.get(o) for o in program_values} - {None}
        if known_origins:
            possible |= known_origins
        elif program_values or v.op == CONST or not v.inputs:
            possible.add(Origin.PLAIN if v.op == CONST else None)
        else:
            todo += v.inputs
    return next((o for o in (Origin.TENSOR, Origin.ARRAY, None) if o in possible), Origin.PLAIN)


def _origins_by_tests(claim: Claim, origins: Origins, statement: ast.stmt) -> Iterator[tuple[Value, Origin]]:
    """Yields what `isinstance` tests show about values, in branches around `statement` and in statements before it."""
    block: list[ast.stmt] | None = claim.captured.function.body
    while block is not None:
        around = None
        for s in block:
            if s is statement or any(n is statement for n in walk(s)):
                around = s
                break
            yield from _origins_after(claim, origins, s)
        if around is None or around is statement:
            return
        if isinstance(around, ast.If):
            in_body = any(n is statement for b in around.body for n in walk(b))
            yield from _origins_if(claim, origins, around.test, in_body)
        block = next((b for b in blocks_of(around) if any(n is statement for s in b for n in walk(s))), None)


def _origins_after(claim: Claim, origins: Origins, s: ast.stmt) -> Iterator[tuple[Value, Origin]]:
    """Yields what holds after an assertion, or after an `if` whose branch leaves the block."""
    if isinstance(s, ast.Assert):
        yield from _origins_if(claim, origins, s.test, True)
    elif isinstance(s, ast.If) and isinstance(s.body[-1], (ast.Return, ast.Raise, ast.Continue)) and not s.orelse:
        yield from _origins_if(claim, origins, s.test, False)


def _origins_if(claim: Claim, origins: Origins, test: ast.expr, holds: bool) -> Iterator[tuple[Value, Origin]]:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _origins_if(claim, origins, inner, not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
            for v in values:
                yield from _origins_if(claim, origins, v, holds)
        case ast.Call() if holds:
            tests = (v for v, places in claim.captured.positions.items() if any(p.node is test for p in places))
            tested = next((t for v in tests if (t := origins.tested_origin(v)) is not None), None)
            if tested is not None:
                yield tested


def _source_name(claim: Claim, v: Value | None, name: str) -> str:
    """Returns the source text of an operand, or the name that the rule has for it."""
    if v is not None and v.op == PARAMETER:
        return f"`{v.data}`"
    for place in claim.captured.positions.get(v, ()) if v is not None else ():
        text = ast.unparse(place.node)
        if len(text) <= 40 and "\n" not in text:
            return f"`{text}`"
    return f"the {name}" if name != "x" else "the operand"
