"""Finds code between the matched steps that may write to an operand: `Holder(k).wipe()`, `getattr(k, "zero_")()`.

The edit reads the operands after this code, and the program before it. A call reaches an operand if the operand is its
argument or receiver, a part of one, or is held by an object or a container that is one. A tensor that the function
stored in an attribute, a container or a closure is reached by every call. What a call does is known for operations of
the vocabulary, for functions of torch that do not write in place, and for functions of the file that only make such
calls. An operator on an object of a class of the file, or on an array of numpy, is a call too.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, CONST, GLOBAL, MODULE, PARAMETER, SINK, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, NAMES, OPS
from autofuse.match.legality import has_unused_result, is_metadata, memory_of, written_in_place
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.scope import ClassScope, DefinedFunction
from autofuse.source.capture.syntax import walk
from autofuse.source.capture.writes import written_outer_names
from autofuse.source.evidence.claim import Claim, Missing

READING_FUNCTIONS = frozenset(
    "print len isinstance hasattr getattr repr str format id type super bool float all any sum hash callable".split()
)
CALL_THEIR_ARGUMENT = frozenset("map filter".split())  # builtins that call a function with the other arguments
_STORES = (matches.VALUE_STORED, matches.VALUE_WRITTEN_TO_MEMORY, matches.VALUE_READ_BY_FUNCTION)
_DEEPEST = 4  # functions of the file that call each other


def no_call_writes(claim: Claim, operands: list[Value], start: int, end: int) -> Iterator[Missing]:
    """Reports code between two positions of the graph that may write to an operand."""
    bases = {base for v in operands for base in memory_of(v, through_parts=True) if _is_memory(base)}
    stored_at = _first_store(claim, bases, end)
    for v in claim.captured.graph.values[start:end]:
        is_call = (
            v.op == CALL and not is_harmless_call(claim, v) and (v.serial > stored_at or _reaches(v.inputs, bases))
        )
        if is_call or any(_is_object(claim, i) and _reaches((i,), bases) for i in v.inputs):
            yield Missing(f"assumes that {text_of_call(claim, v)} does not write to an operand")


def _first_store(claim: Claim, bases: Collection[Value], end: int) -> int:
    """The position where the function first stores one of the tensors where other code finds it; `end` if nowhere."""
    stores = (
        v.serial
        for v in claim.captured.graph.values[:end]
        if v.op == SINK and isinstance(v.data, Reason) and v.data.code in _STORES and _reaches(v.inputs, bases)
    )
    return next(stores, end)


def _is_object(claim: Claim, v: Value) -> bool:
    """Whether `v` is an object whose operators the file defines, or an array that shares memory with a tensor."""
    if v.op != CALL or not v.inputs:
        return False
    function = v.inputs[0]
    is_array = _name_of(v) == ".numpy" or _name_of(v).startswith("numpy.")
    return is_array or function.op == GLOBAL and function.data in claim.defined.scope.classes


def _is_memory(base: Value) -> bool:
    return base.op not in (CONST, MODULE, GLOBAL) and qualified_name(base) is None


def _reaches(inputs: Iterable[Value], bases: Collection[Value]) -> bool:
    """Whether one of the inputs is one of the tensors, or an object that may hold one."""
    todo, seen = list(inputs), set[Value]()
    while todo:
        v = todo.pop()
        if v in bases:
            return True
        if v in seen or _is_new_memory(v):
            continue
        seen.add(v)
        spend()
        todo += v.inputs
    return False


def _is_new_memory(v: Value) -> bool:
    """Whether a value holds none of the tensors that it is computed from."""
    if v.op in OPS:
        return OPS[v.op].effect in ("pure", "random", "metadata")
    return is_metadata(v)


def is_harmless_call(claim: Claim, call: Value) -> bool:
    """Whether a call is known not to write to its arguments."""
    name, function = _name_of(call), call.inputs[0] if call.inputs else call
    if isinstance(call.data, tuple) and "out" in call.data[1]:
        return False
    if name in CALL_THEIR_ARGUMENT:
        return len(call.inputs) > 1 and _is_known_function(claim, call.inputs[1])
    if isinstance(call.data, tuple) and "key" in call.data[1]:
        return _is_known_function(claim, call.inputs[len(call.inputs) - len(call.data[1]) + call.data[1].index("key")])
    if name in HARMLESS or name in MODULES or name in READING_FUNCTIONS:
        return True
    if (qualified := qualified_name(function)) is not None:
        return _is_harmless_name(qualified) and not has_unused_result(claim.captured.graph, call)
    if function.op == GLOBAL and (called := claim.defined.scope.functions.get(str(function.data))) is not None:
        return _only_reads(claim.defined, None, called)
    return _is_harmless_attribute(claim, function)


def _is_harmless_attribute(claim: Claim, function: Value) -> bool:
    """Whether `function` is a method or a child of the instance that only reads its arguments."""
    owner, scope = claim.defined.owner, claim.defined.scope
    receiver = function.inputs[0] if function.op == ATTRIBUTE else None
    if owner is None or receiver is None or receiver.op != PARAMETER or receiver.data != _self_name(claim):
        return False
    if (method := scope.method(owner, str(function.data))) is not None:
        return _only_reads(claim.defined, owner, method)
    assigned = scope.attribute(owner, str(function.data))
    return isinstance(assigned, ast.Call) and (scope.name_of(assigned.func) or "").startswith("torch.nn.")


def _is_known_function(claim: Claim, function: Value) -> bool:
    name = qualified_name(function)
    if name is not None:
        return _is_harmless_name(name)
    return function.op == GLOBAL and (function.data in HARMLESS or function.data in READING_FUNCTIONS)


def _is_harmless_name(name: str) -> bool:
    """Whether an imported function only reads its arguments, as its name says."""
    if name in NAMES or name in HARMLESS or name in MODULES:
        return True
    return name.split(".")[0] in ("torch", "numpy", "math") and not written_in_place(name)


def _only_reads(defined: DefinedFunction, owner: ClassScope | None, called: Function, depth: int = 0) -> bool:
    """Whether a function of the file writes to nothing that its caller has, and calls only functions like this."""
    if depth > _DEEPEST or written_outer_names(called):
        return False
    spend()
    return all(_is_reading_call(defined, owner, n, depth) for n in walk(called) if isinstance(n, ast.Call))


def _is_reading_call(defined: DefinedFunction, owner: ClassScope | None, call: ast.Call, depth: int) -> bool:
    scope, function = defined.scope, call.func
    name = scope.name_of(function)
    if any(k.arg == "out" for k in call.keywords):
        return False
    if name is not None:
        return _is_harmless_name(name)
    if isinstance(function, ast.Name):
        if (called := scope.functions.get(function.id)) is not None:
            return _only_reads(defined, owner, called, depth + 1)
        builtin = function.id not in scope.bound and function.id not in CALL_THEIR_ARGUMENT
        return builtin and (function.id in HARMLESS or function.id in READING_FUNCTIONS)
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and (method := scope.method(owner, function.attr)) is not None:
        return _only_reads(defined, owner, method, depth + 1)
    return f".{function.attr}" in NAMES or f".{function.attr}" in HARMLESS


def _name_of(call: Value) -> str:
    return str(call.data[0]) if isinstance(call.data, tuple) else ""


def _self_name(claim: Claim) -> str | None:
    arguments = claim.captured.function.args
    first = [*arguments.posonlyargs, *arguments.args][:1]
    return claim.defined.instance_name or (first[0].arg if first else None)


def text_of_call(claim: Claim, call: Value) -> str:
    """The call as the file writes it, with its line."""
    place = next(iter(claim.captured.positions.get(call, ())), None)
    if place is None:
        return f"`{_name_of(call)}`"
    text = ast.unparse(place.node)
    return f"`{text if len(text) <= 60 else f'{text[:57]}...'}` in line {place.node.lineno}"
