"""Does anything change the operands between the place where they are read now and the fused call?

The engine has declined what the graph shows. Asked here: memory that somebody else holds, and that a suspended
function, an aliased argument or a method may write to. What the function computed itself nobody else holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, GLOBAL, ITEM, OPAQUE, PARAMETER, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import MODULES
from autofuse.match.legality import is_metadata, memory_of, written_in_place
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.capture_state import qualified
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.writes import written_roots
from autofuse.source.evidence.claim import Claim, Missing

_SUSPENDED = ("await", "yield", "yieldfrom")
_LOOKS = frozenset("print len isinstance hasattr getattr repr str format id type super".split())
_GIVE_WHAT_IS_KEPT = frozenset(
    """
    getattr vars dict next list get get_buffer get_parameter buffers parameters named_buffers named_parameters
    state_dict __getattr__ __getattribute__ attrgetter
    """.split()
)


def nothing_writes_in_between(claim: Claim) -> Iterator[Missing | Fails]:
    """What is missing to show that the operands still hold what they held; Fails where the text shows a write."""
    steps = claim.site.doomed.values | claim.site.steps
    start, end = min((v.serial for v in steps), default=claim.site.root.serial), claim.site.root.serial
    held = [v for v in _operands(claim, steps) if any(map(_external, memory_of(v, through_parts=True)))]
    if not held:
        return
    yield from _aliases(claim, held, steps, start, end)
    yield from _rebound_data(claim, start, end)
    for v in claim.captured.graph.values[start:end]:
        if v.op == OPAQUE and v.data in _SUSPENDED:
            word = "await" if v.data == "await" else "yield"
            names = _listed(claim, held)
            yield Missing(f"assumes that nothing writes to {names} while the function waits at `{word}`")
        elif v.op == CALL:
            yield from _by_call(claim, v, held)


def _operands(claim: Claim, steps: frozenset[Value]) -> list[Value]:
    """Program values that the matched steps read and that stay."""
    read = {i for s in steps for i in s.inputs if i not in steps and not is_metadata(s)}
    return sorted((v for v in read if _is_memory(claim, v)), key=lambda v: v.serial)


def _is_memory(claim: Claim, v: Value) -> bool:
    known = claim.captured.known.get(v)
    return not is_metadata(v) and qualified(v) is None and not (known is not None and known.number)


def _external(base: Value) -> bool:
    """Whether somebody else may hold this memory: an argument, an attribute, a global, what a call gave."""
    return base.op in (PARAMETER, GLOBAL) or base.op == ATTRIBUTE and qualified(base) is None


def _gives_what_is_kept(base: Value) -> bool:
    """Whether a call gives a tensor that some object holds: `getattr(self, "cache")`."""
    name = str(base.data[0]) if base.op == CALL and isinstance(base.data, tuple) else ""
    return name.rpartition(".")[2] in _GIVE_WHAT_IS_KEPT


def _aliases(
    claim: Claim, held: list[Value], steps: frozenset[Value], start: int, end: int
) -> Iterator[Missing]:  # fmt: skip
    """Writes to other memory that somebody else holds, which may be that of an operand read before."""
    writes = [(w.target, w.at) for w in claim.captured.graph.writes if start < w.at <= end]
    calls = (v for v in claim.captured.graph.values[start:end] if v.op == CALL and isinstance(v.data, tuple))
    writes += [(target, call.serial) for call in calls for target in _written_by(claim, call)]
    for target, at in writes:
        memory = memory_of(target, through_parts=True)
        if not any(_external(b) or _gives_what_is_kept(b) for b in memory):
            continue
        for v in held:
            before = any(u.serial < at for u in claim.captured.graph.users[v] if u in steps)
            apart = not set(memory).intersection(memory_of(v, through_parts=True))
            if before and apart and not _both_kept(memory, v):
                yield Missing(f"assumes that {_name(claim, target)} and {_name(claim, v)} share no memory")


def _written_by(claim: Claim, call: Value) -> Iterator[Value]:
    """What a call writes to by its name or its keywords, or by the text of the function: `zeros_(x)`, `out=x`."""
    name, keywords = call.data if isinstance(call.data, tuple) else ("", ())
    function, given = call.inputs[0] if call.inputs else call, call.inputs[1:]
    last = str(name).rpartition(".")[2]
    if str(name).startswith(".") and written_in_place(last) and function.op == ATTRIBUTE:
        yield function.inputs[0]
    elif str(name).startswith("torch.") and written_in_place(last):
        yield from (part for v in given for part in (v.inputs if v.op == TUPLE else (v,)))
    elif function.op == GLOBAL and (called := claim.defined.scope.functions.get(str(function.data))) is not None:
        arguments = (a.arg for a in (*called.args.posonlyargs, *called.args.args))
        roots = written_roots(called)
        yield from (v for a, v in zip(arguments, given, strict=False) if a in roots)
    if "out" in keywords:
        yield from given[len(given) - len(keywords) + keywords.index("out") :][:1]


def _rebound_data(claim: Claim, start: int, end: int) -> Iterator[Missing]:
    """`x.data = y` gives other contents to a tensor, under each of its names."""
    between = [
        p.statement.lineno
        for v in claim.captured.graph.values[start : end + 1]
        for p in claim.captured.places.get(v, ())
    ]
    for n in walk(claim.captured.function) if between else ():
        stored = isinstance(n, ast.Attribute) and n.attr == "data" and isinstance(n.ctx, ast.Store)
        if stored and min(between) <= n.lineno <= max(between):  # type: ignore[attr-defined]
            yield Missing(f"assumes that `{ast.unparse(n)}` is not the data of an operand")


def _both_kept(memory: list[Value], v: Value) -> bool:
    """Whether both are attributes of one object, under two names."""
    bases = [b for b in memory if _external(b)], [b for b in memory_of(v, through_parts=True) if _external(b)]
    return all(b.op == ATTRIBUTE for side in bases for b in side)


def _by_call(claim: Claim, call: Value, held: list[Value]) -> Iterator[Missing | Fails]:
    name = str(call.data[0]) if isinstance(call.data, tuple) else ""
    function = call.inputs[0] if call.inputs else call
    if name in HARMLESS or name in MODULES or name in _LOOKS or qualified(function) is not None:
        return
    owner = function.inputs[0] if function.op == ATTRIBUTE else None
    kept = [v for v in held if any(b.op in (ATTRIBUTE, GLOBAL) for b in memory_of(v, through_parts=True))]
    if owner is not None and owner.op == PARAMETER and claim.defined.owner is not None and owner.data == _me(claim):
        yield from _by_own_method(claim, call, name[1:], kept)
    elif function.op == GLOBAL and (called := claim.defined.scope.functions.get(str(function.data))) is not None:
        roots = written_roots(called)
        arguments = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
        given = [v for a, v in zip(arguments, call.inputs[1:], strict=False) if a in roots]
        reached = [v for v in held if any(_shares(v, g) or _is_part(v, g) for g in given)]
        if reached or kept and roots - set(arguments):
            yield Fails(because(matches.OPERAND_PASSED_ON), next(iter(reached or kept)), use=call)


def _by_own_method(claim: Claim, call: Value, name: str, kept: list[Value]) -> Iterator[Missing | Fails]:
    """A method of the same object, which may write to what the object keeps."""
    if not kept:
        return
    scope, owner = claim.defined.scope, claim.defined.owner
    method = scope.method(owner, name)
    if any(name in c.writes for c in scope.lineage(owner)):
        yield Fails(because(matches.OPERAND_PASSED_ON), kept[0], use=call)
    elif method is None and (_alone(claim, call) or _is_lambda(claim, name)):
        yield Missing(f"assumes that `{name}` does not write to {_name(claim, kept[0])}")


def _is_lambda(claim: Claim, name: str) -> bool:
    """Whether the class assigns a `lambda` to an attribute, which may reach all that the class holds."""
    classes = claim.defined.scope.lineage(claim.defined.owner)
    given = [v for c in classes for kind in (c.attributes, c.defaults) for v in kind.get(name, ())]
    return any(isinstance(v, ast.Lambda) and any(isinstance(n, ast.Call) for n in walk(v)) for v in given)


def _alone(claim: Claim, call: Value) -> bool:
    """Whether a call is a statement of its own, which is made for what it does."""
    places = claim.captured.places.get(call, ())
    return any(isinstance(p.statement, ast.Expr) for p in places)


def _is_part(v: Value, owner: Value) -> bool:
    """Whether `v` is memory that the object `owner` holds in an attribute: `self.cache` of `self`."""
    todo = [b for b in memory_of(v, through_parts=True) if b.op == ATTRIBUTE]
    while todo:
        holder = todo.pop().inputs[:1]
        if owner in holder:
            return True
        todo += [h for h in holder if h.op == ATTRIBUTE]
    return False


def _shares(v: Value, other: Value) -> bool:
    return bool(set(memory_of(v, through_parts=True)).intersection(memory_of(other, through_parts=True)))


def _me(claim: Claim) -> str | None:
    arguments = claim.captured.function.args
    first = [*arguments.posonlyargs, *arguments.args][:1]
    return claim.defined.me or (first[0].arg if first else None)


def _listed(claim: Claim, values: list[Value]) -> str:
    return ", ".join(dict.fromkeys(_name(claim, v) for v in values))


def _name(claim: Claim, v: Value) -> str:
    """How the author wrote a value, or what it is part of."""
    while v.op != PARAMETER:
        place = next(iter(claim.captured.places.get(v, ())), None)
        if place is not None and len(text := ast.unparse(place.node)) <= 40:
            return f"`{text}`"
        if not v.inputs or v.op == ITEM:
            return "an operand"
        v = v.inputs[0]
    return f"`{v.data}`"
