"""Checks that nothing writes to the operands between their first read and the fused call.

The engine declines sites with writes that the graph shows. This check is about memory that other code also holds:
arguments, attributes and globals. A suspended function, an alias or a method may write to it. A value that the function
computes itself is held by no other code; hidden_writes.py looks for writes that reach it through a container.
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
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.writes import written_outer_names
from autofuse.source.evidence.calls_between import READING_FUNCTIONS, no_call_writes
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.hidden_writes import no_hidden_write

_SUSPENSIONS = ("await", "yield", "yieldfrom")
_RETURN_HELD_TENSORS = frozenset(
    """
    getattr vars dict next list get get_buffer get_parameter buffers parameters named_buffers named_parameters
    state_dict __getattr__ __getattribute__ attrgetter
    """.split()
)


def nothing_writes_to_operands(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if the text shows a write to an operand before the fused call; reports places that may write to it."""
    steps = claim.site.removed.values | claim.site.steps
    start, end = min((v.serial for v in steps), default=claim.site.root.serial), claim.site.root.serial
    yield from no_hidden_write(claim, steps | {claim.site.root})
    read = _operands(claim, steps)
    yield from no_call_writes(claim, read, start, end)
    operands = [v for v in read if any(map(_is_shared, memory_of(v, through_parts=True)))]
    if not operands:
        return
    # The edit moves reads from the first matched step to the result. Only writes in between matter.
    yield from _check_aliases(claim, operands, steps, start, end)
    for v in claim.captured.graph.values[start:end]:
        if v.op == OPAQUE and v.data in _SUSPENSIONS:
            word = "await" if v.data == "await" else "yield"
            names = _list_names(claim, operands)
            yield Missing(f"assumes that nothing writes to {names} while the function waits at `{word}`")
        elif v.op == CALL:
            yield from _check_call(claim, v, operands)


def _operands(claim: Claim, steps: frozenset[Value]) -> list[Value]:
    """Returns the program values that the matched steps read and that the edit keeps, in program order."""
    read = {i for s in steps for i in s.inputs if i not in steps and not is_metadata(s)}
    return sorted((v for v in read if _is_memory(claim, v)), key=lambda v: v.serial)


def _is_memory(claim: Claim, v: Value) -> bool:
    known = claim.captured.known.get(v)
    return not is_metadata(v) and qualified_name(v) is None and not (known is not None and known.number)


def _is_shared(base: Value) -> bool:
    """Whether other code may hold this memory: an argument, an attribute, or a global."""
    return base.op in (PARAMETER, GLOBAL) or base.op == ATTRIBUTE and qualified_name(base) is None


def _returns_held_tensor(base: Value) -> bool:
    """Whether a call returns a tensor that some object holds: `getattr(self, "cache")`."""
    name = str(base.data[0]) if base.op == CALL and isinstance(base.data, tuple) else ""
    return name.rpartition(".")[2] in _RETURN_HELD_TENSORS


def _check_aliases(
    claim: Claim, operands: list[Value], steps: frozenset[Value], start: int, end: int
) -> Iterator[Missing]:  # fmt: skip
    """Reports writes to memory that may be an alias of an operand that was read before."""
    writes = [(w.target, w.at) for w in claim.captured.graph.writes if start < w.at <= end]
    calls = (v for v in claim.captured.graph.values[start:end] if v.op == CALL and isinstance(v.data, tuple))
    writes += [(target, call.serial) for call in calls for target in _arguments_written_by(claim, call)]
    for target, at in writes:
        memory = memory_of(target, through_parts=True)
        # A tensor that this function computed is no alias of an operand.
        if not any(_is_shared(b) or _returns_held_tensor(b) for b in memory):
            continue
        for v in operands:
            read_before = any(u.serial < at for u in claim.captured.graph.users[v] if u in steps)
            no_common_base = not set(memory).intersection(memory_of(v, through_parts=True))
            if read_before and no_common_base and not _are_attributes(memory, v):
                yield Missing(
                    f"assumes that {_source_name(claim, target)} and {_source_name(claim, v)} share no memory"
                )


def _arguments_written_by(claim: Claim, call: Value) -> Iterator[Value]:
    """Yields the arguments that a call writes to: `x.zero_()`, `out=x`, or by the code of a function of the file."""
    name, keywords = call.data if isinstance(call.data, tuple) else ("", ())
    function, arguments = call.inputs[0] if call.inputs else call, call.inputs[1:]
    last = str(name).rpartition(".")[2]
    if str(name).startswith(".") and written_in_place(last) and function.op == ATTRIBUTE:
        yield function.inputs[0]
    elif str(name).startswith("torch.") and written_in_place(last):
        yield from (part for v in arguments for part in (v.inputs if v.op == TUPLE else (v,)))
    elif function.op == GLOBAL and (called := claim.defined.scope.functions.get(str(function.data))) is not None:
        names = (a.arg for a in (*called.args.posonlyargs, *called.args.args))
        roots = written_outer_names(called)
        yield from (v for a, v in zip(names, arguments, strict=False) if a in roots)
    if "out" in keywords:
        yield from arguments[len(arguments) - len(keywords) + keywords.index("out") :][:1]


def _are_attributes(memory: list[Value], v: Value) -> bool:
    """Whether both are only attributes. Two attributes of an object are not taken for aliases of each other."""
    bases = [b for b in memory if _is_shared(b)], [b for b in memory_of(v, through_parts=True) if _is_shared(b)]
    return all(b.op == ATTRIBUTE for side in bases for b in side)


def _check_call(claim: Claim, call: Value, operands: list[Value]) -> Iterator[Missing | Fails]:
    name = str(call.data[0]) if isinstance(call.data, tuple) else ""
    function = call.inputs[0] if call.inputs else call
    if name in HARMLESS or name in MODULES or name in READING_FUNCTIONS or qualified_name(function) is not None:
        return
    owner = function.inputs[0] if function.op == ATTRIBUTE else None
    held_operands = [v for v in operands if any(b.op in (ATTRIBUTE, GLOBAL) for b in memory_of(v, through_parts=True))]
    is_self = owner is not None and owner.op == PARAMETER and owner.data == _self_name(claim)
    if is_self and claim.defined.owner is not None:
        yield from _check_own_method(claim, call, name[1:], held_operands)
    elif function.op == GLOBAL and (called := claim.defined.scope.functions.get(str(function.data))) is not None:
        roots = written_outer_names(called)
        names = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
        written = [v for a, v in zip(names, call.inputs[1:], strict=False) if a in roots]
        written_operands = [v for v in operands if any(_shares_memory(v, g) or _is_held_by(v, g) for g in written)]
        if written_operands or held_operands and roots - set(names):
            yield Fails(because(matches.OPERAND_PASSED_ON), next(iter(written_operands or held_operands)), use=call)


def _check_own_method(claim: Claim, call: Value, name: str, operands: list[Value]) -> Iterator[Missing | Fails]:
    """Checks a method call on the same object. It may write to tensors that the object holds."""
    if not operands:
        return
    scope, owner = claim.defined.scope, claim.defined.owner
    method = scope.method(owner, name)
    if any(name in c.writing_methods for c in scope.lineage(owner)):
        yield Fails(because(matches.OPERAND_PASSED_ON), operands[0], use=call)
    elif method is None and (_is_statement(claim, call) or _is_lambda(claim, name)):
        yield Missing(f"assumes that `{name}` does not write to {_source_name(claim, operands[0])}")


def _is_lambda(claim: Claim, name: str) -> bool:
    """Whether the class assigns a `lambda` that makes calls to the attribute. It may write to anything in the class."""
    classes = claim.defined.scope.lineage(claim.defined.owner)
    assigned = [v for c in classes for kind in (c.attributes, c.defaults) for v in kind.get(name, ())]
    return any(isinstance(v, ast.Lambda) and any(isinstance(n, ast.Call) for n in walk(v)) for v in assigned)


def _is_statement(claim: Claim, call: Value) -> bool:
    """Whether a call is a statement of its own, and so made for its side effect."""
    places = claim.captured.positions.get(call, ())
    return any(isinstance(p.statement, ast.Expr) for p in places)


def _is_held_by(v: Value, owner: Value) -> bool:
    """Whether the object `owner` holds `v` in an attribute: `self` holds `self.cache`."""
    todo = [b for b in memory_of(v, through_parts=True) if b.op == ATTRIBUTE]
    while todo:
        holder = todo.pop().inputs[:1]
        if owner in holder:
            return True
        todo += [h for h in holder if h.op == ATTRIBUTE]
    return False


def _shares_memory(v: Value, other: Value) -> bool:
    return bool(set(memory_of(v, through_parts=True)).intersection(memory_of(other, through_parts=True)))


def _self_name(claim: Claim) -> str | None:
    arguments = claim.captured.function.args
    first = [*arguments.posonlyargs, *arguments.args][:1]
    return claim.defined.instance_name or (first[0].arg if first else None)


def _list_names(claim: Claim, values: list[Value]) -> str:
    return ", ".join(dict.fromkeys(_source_name(claim, v) for v in values))


def _source_name(claim: Claim, v: Value) -> str:
    """Returns the source text of a value, or of the value that it is a part of."""
    while v.op != PARAMETER:
        place = next(iter(claim.captured.positions.get(v, ())), None)
        if place is not None and len(text := ast.unparse(place.node)) <= 40:
            return f"`{text}`"
        if not v.inputs or v.op == ITEM:
            return "an operand"
        v = v.inputs[0]
    return f"`{v.data}`"
