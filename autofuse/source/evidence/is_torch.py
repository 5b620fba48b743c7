"""Is it torch? Each operand must be a torch tensor by evidence; numpy's arrays are spelled the same.

Asks origins.py what the operands are where the edit stands.
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
from autofuse.source.evidence.origins import Origins, evidence_against
from autofuse.source.evidence.run_together import computed_with
from autofuse.source.targets.express import root_places

Known = dict[Value, Origin]


def is_torch(claim: Claim) -> Iterator[Missing | Fails]:
    """What is missing to show that the operands are torch tensors; Fails where one is another library's array."""
    known = _known(claim)
    for name, needed in _operands(claim):
        v = claim.site.captures[name]
        origin = _origin(claim, v, known)
        if origin is Origin.TENSOR or not needed and claim.view.number(v):
            continue
        culprit = next(iter(claim.view.originals(v)), None)
        if origin is Origin.ARRAY or culprit is not None and evidence_against(claim.captured, culprit):
            yield Fails(because(tensors.OTHER_ARRAY), culprit)
        elif needed:
            yield Missing(f"assumes that {_written(claim, culprit, name)} is a torch tensor")


def _operands(claim: Claim) -> Iterator[tuple[str, bool]]:
    """The tensors that the rule's operation takes, and whether each has to be there, with nothing else in its place."""
    annotations = claim.site.rule.rule.before.__annotations__
    for name in claim.site.captures:
        said = str(annotations.get(name, ""))
        if "Tensor" in said:
            yield name, said == "Tensor"


def _known(claim: Claim) -> Known:
    """What is known of values where the result is computed."""
    place = root_places(claim.captured, claim.site)[0]
    origins = Origins(claim.defined, claim.captured)
    uses = computed_with(claim.captured, claim.site.root, place.statement)
    return origins.at(uses, dict(_tested(claim, origins, place.statement)))


def _origin(claim: Claim, v: Value, known: Known) -> Origin | None:
    """What a canonical value is: what the program's values are that it stands for, or what it is made of."""
    todo, seen = [v], set[Value]()
    found: set[Origin | None] = set()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        own = [v.data] if isinstance(v.data, Value) else claim.view.originals(v)
        answers = {known.get(o) for o in own} - {None}
        if answers:
            found |= answers
        elif own or v.op == CONST or not v.inputs:
            found.add(Origin.PLAIN if v.op == CONST else None)
        else:
            todo += v.inputs
    return next((o for o in (Origin.TENSOR, Origin.ARRAY, None) if o in found), Origin.PLAIN)


def _tested(claim: Claim, origins: Origins, statement: ast.stmt) -> Iterator[tuple[Value, Origin]]:
    """What `isinstance` says of values in the branches around `statement`, and in what comes before it."""
    block: list[ast.stmt] | None = claim.captured.function.body
    while block is not None:
        inner = None
        for s in block:
            if s is statement or any(n is statement for n in walk(s)):
                inner = s
                break
            yield from _passed(claim, origins, s)
        if inner is None or inner is statement:
            return
        if isinstance(inner, ast.If):
            inside = any(n is statement for b in inner.body for n in walk(b))
            yield from _outcome(claim, origins, inner.test, inside)
        block = next((b for b in blocks_of(inner) if any(n is statement for s in b for n in walk(s))), None)


def _passed(claim: Claim, origins: Origins, s: ast.stmt) -> Iterator[tuple[Value, Origin]]:
    """What is known behind an assertion, or behind a test that is left where it does not hold."""
    if isinstance(s, ast.Assert):
        yield from _outcome(claim, origins, s.test, True)
    elif isinstance(s, ast.If) and isinstance(s.body[-1], (ast.Return, ast.Raise, ast.Continue)) and not s.orelse:
        yield from _outcome(claim, origins, s.test, False)


def _outcome(claim: Claim, origins: Origins, test: ast.expr, holds: bool) -> Iterator[tuple[Value, Origin]]:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _outcome(claim, origins, inner, not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
            for v in values:
                yield from _outcome(claim, origins, v, holds)
        case ast.Call() if holds:
            asked = (v for v, places in claim.captured.places.items() if any(p.node is test for p in places))
            found = next((t for v in asked if (t := origins.told_by(v)) is not None), None)
            if found is not None:
                yield found


def _written(claim: Claim, v: Value | None, name: str) -> str:
    """How the author wrote an operand: `x`; else what the rule calls it."""
    if v is not None and v.op == PARAMETER:
        return f"`{v.data}`"
    for place in claim.captured.places.get(v, ()) if v is not None else ():
        text = ast.unparse(place.node)
        if len(text) <= 40 and "\n" not in text:
            return f"`{text}`"
    return f"the {name}" if name != "x" else "the operand"
