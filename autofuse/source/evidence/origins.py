"""Which values of a function are torch tensors, which are another library's arrays.

Two kinds of evidence: how a value was made (a torch call, an argument of a forward, arithmetic with a tensor), and
what is done with it wherever the code in question runs (a torch function, which takes tensors only; a method that only
tensors have). Reads the captured graph. Decides nothing about edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CHOICE,
    CONST,
    GLOBAL,
    IS_NONE,
    ITEM,
    MODULE,
    NOT,
    OPAQUE,
    PARAMETER,
    SINK,
    SLICE,
    SYNTAX,
    TUPLE,
    Value,
)
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import METADATA, OPS
from autofuse.source.capture.capture_state import qualified
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import Defined
from autofuse.source.evidence.annotations import Origin
from autofuse.source.evidence.arguments import argument_origins, has_lookalikes, is_module
from autofuse.source.evidence.attributes import attribute_origin, child_of_torch, expression_origin, is_child, of_child
from autofuse.source.evidence.libraries import (
    ARRAYS,
    METHODS,
    OF_ARRAYS,
    PLAIN_METHODS,
    gives_tensor,
    root,
    takes_tensor,
)
from autofuse.source.evidence.spellings import function_of_torch, method_of_torch, with_numbers_of_torch

_NO_VALUES = frozenset({SINK, IS_NONE, NOT, MODULE, SLICE})
_OF_NUMBERS = frozenset("number_sqrt number_pow number finfo".split())
_TWO_OPERANDS = frozenset("add sub rsub mul div floordiv mod pow".split())
_BOTH_OPERANDS = frozenset({"matmul"})
_LOSSES = frozenset({"nll_loss", "cross_entropy", "linear"})
_CONTAINERS = frozenset({"cat", "stack", "einsum"})
_ANY_INPUT = frozenset("tensor ones zeros full arange where finfo number pow add mul sub div activation".split())
_JOINS = ("an element", "changed", "assigned", "one of several", "computed in", "shares memory", "written by")


_VALUES_A_STEP = 8  # looking at a value once more is quickly done
_MOST_TERMS = 64  # of a sum or a product that are looked at


@dataclass
class Origins:
    """What is known of the values of one function; `made` by how they were made."""

    defined: Defined
    captured: CapturedFunction
    made: dict[Value, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._arguments = argument_origins(self.defined)
        self._lookalikes = has_lookalikes(self.defined.scope)
        self._module = self.defined.owner is not None and is_module(self.defined.scope, self.defined.owner)
        for v in self.captured.graph.values:
            if (origin := self._made(v, self.made)) is not None:
                self.made[v] = origin

    def at(self, uses: Iterable[Value], told: Mapping[Value, Origin]) -> dict[Value, Origin]:
        """What is known where all of `uses` are computed and `told` holds, such as the outcome of a test."""
        known, together = {**self.made, **told}, list(uses)
        while True:
            before = len(known)
            spend(1 + len(self.captured.graph.values) // _VALUES_A_STEP)
            for v in together:
                for used in self._used_by(v):
                    known.setdefault(used, Origin.TENSOR)
            for v in reversed(together):
                if known.get(v) is Origin.TENSOR:
                    for source in self._sources(v, known):
                        known.setdefault(source, Origin.TENSOR)
            for v in self.captured.graph.values:
                if v not in known and (origin := self._made(v, known)) is not None:
                    known[v] = origin
            if len(known) == before:
                return known

    # How it was made.

    def _made(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        if v.op in _NO_VALUES:
            return None
        if v.op == CONST:
            return Origin.PLAIN
        if v.op == PARAMETER:
            return self._arguments.get(str(v.data))
        if v.op == GLOBAL:
            return self._global(str(v.data))
        if v.op == ATTRIBUTE:
            return self._attribute(v, known)
        if v.op == CALL:
            return self._called(v, known)
        if v.op == CHOICE:
            return self._chosen(v, known)
        if v.op == ITEM:
            origin = known.get(v.inputs[0])
            return None if origin is Origin.PLAIN else origin
        if v.op in (TUPLE, SYNTAX) or v.op == OPAQUE and str(v.data).startswith(_JOINS):
            return _agreed(known.get(i) for i in v.inputs)
        if v.op not in OPS:
            return None
        return self._computed(v, known)

    def _computed(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        if OPS[v.op].effect == "metadata" or v.op in _OF_NUMBERS:
            return Origin.PLAIN
        if any(map(function_of_torch, self.captured.spelled.get(v, ()))):
            return Origin.TENSOR
        return _combined([known.get(i) for i in v.inputs])

    def _global(self, name: str) -> Origin | None:
        value = self.defined.scope.variables.get(name)
        return None if value is None else expression_origin(self.defined.scope, value)

    def _attribute(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        owner, name = v.inputs[0], str(v.data)
        if qualified(v) is not None or v.data in METADATA:
            return None
        if known.get(owner) is not None and owner.op != CONST:
            return known[owner] if name not in ("shape", "dtype") else Origin.PLAIN
        if self._is_instance(owner):
            return attribute_origin(self.defined.scope, self.defined.owner, name)
        held = owner.inputs[0] if owner.op == ITEM else owner
        if of_child(name) and held.op == ATTRIBUTE and self._is_instance(held.inputs[0]) and self._module:
            return Origin.TENSOR
        return None

    def _is_instance(self, v: Value) -> bool:
        return v.op == PARAMETER and self.defined.owner is not None and v.data == self._me()

    def _me(self) -> str | None:
        arguments = self.defined.function.args
        first = [*arguments.posonlyargs, *arguments.args][:1]
        return self.defined.me or (first[0].arg if first else None)

    def _called(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        if name.startswith("torch."):
            return Origin.TENSOR if gives_tensor(name) else Origin.PLAIN
        if root(name) in ARRAYS:
            return Origin.ARRAY
        function = v.inputs[0] if v.inputs else v
        if name.startswith(".") and function.op == ATTRIBUTE:
            return self._of_method(name[1:], function.inputs[0], v.inputs[1:], known)
        if function.op in (ATTRIBUTE, ITEM):  # self.layers[0](x)
            return _combined([known.get(i) for i in v.inputs[1:]]) if self._module else None
        return None

    def _of_method(
        self, name: str, owner: Value, given: tuple[Value, ...], known: Mapping[Value, Origin]
    ) -> Origin | None:
        origin = known.get(owner)
        if name in PLAIN_METHODS:
            return Origin.PLAIN
        if name == "numpy" and not given:
            return Origin.ARRAY
        if origin in (Origin.TENSOR, Origin.ARRAY):
            return origin
        if not self._is_instance(owner) or not self._module:
            return None
        if is_child(self.defined.scope, self.defined.owner, name):
            return Origin.TENSOR
        return None

    def _chosen(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        """What a branch gives; one that is taken where `isinstance(x, torch.Tensor)` gives a tensor if it is x."""
        test, yes, no = v.inputs
        asked, denied = (test.inputs[0], True) if test.op == NOT else (test, False)
        sides = {yes: known.get(yes), no: known.get(no)}
        if (found := self.told_by(asked)) is not None:
            tested, origin = found
            if tested is (no if denied else yes):
                sides[tested] = origin
        return _agreed(sides.values())

    def told_by(self, test: Value) -> tuple[Value, Origin] | None:
        """The value that `isinstance(x, C)` asks about, and what it is where that holds."""
        name = str(test.data[0]) if test.op == CALL and isinstance(test.data, tuple) else ""
        if name == "torch.is_tensor" and len(test.inputs) == 2:
            return test.inputs[1], Origin.TENSOR
        if name != "isinstance" or len(test.inputs) != 3:
            return None
        classes = test.inputs[2].inputs if test.inputs[2].op == TUPLE else (test.inputs[2],)
        found = {_of_class(qualified(c) or str(c.data)) for c in classes}
        return (test.inputs[1], origin) if len(found) == 1 and (origin := found.pop()) is not None else None

    # What is done with it.

    def _used_by(self, v: Value) -> Iterable[Value]:
        """Inputs of `v` that have to be tensors, or it would raise."""
        if v.op in OPS:
            spelled = self.captured.spelled.get(v, set())
            functions = any(map(function_of_torch, spelled)) and v.op not in _ANY_INPUT
            methods = not self._lookalikes and (any(map(method_of_torch, spelled)) or with_numbers_of_torch(v, spelled))
            if not functions and not methods:
                return
            if v.op in _CONTAINERS:
                yield from (i for part in v.inputs if part.op == TUPLE for i in _flat(part))
            elif v.op in _BOTH_OPERANDS or v.op in _LOSSES:
                yield from v.inputs[:2]
            elif v.inputs:
                yield v.inputs[0]
        elif v.op == CALL and isinstance(v.data, tuple) and v.inputs:
            yield from self._used_by_call(str(v.data[0]), v)

    def _used_by_call(self, name: str, v: Value) -> Iterable[Value]:
        function = v.inputs[0]
        if takes_tensor(name) and len(v.inputs) > 1:
            yield v.inputs[1]
        elif name.startswith(".") and function.op == ATTRIBUTE:
            owner = function.inputs[0]
            if name[1:] in METHODS and not self._lookalikes and not self._is_instance(owner):
                yield owner
            elif self._is_instance(owner) and child_of_torch(self.defined.scope, self.defined.owner, name[1:]):
                yield from v.inputs[1:2]

    def _sources(self, v: Value, known: Mapping[Value, Origin]) -> Iterable[Value]:
        """Inputs that are tensors because `v` is one."""
        spelled = self.captured.spelled.get(v, set())
        if v.op in _BOTH_OPERANDS:
            yield from v.inputs[:2]
        elif v.op in _TWO_OPERANDS:
            rest = self._terms(v, known)
            if len(rest) == 1 and not any(known.get(t) for t in rest):
                yield from rest
        elif v.op in OPS and v.op not in _ANY_INPUT and v.op not in _CONTAINERS and v.inputs:
            if OPS[v.op].effect != "metadata" and (spelled or v.op == "mT"):
                yield v.inputs[0]
        elif v.op == CHOICE:
            yield from (i for i in v.inputs[1:] if not self._is_number(i, known))

    def _terms(self, v: Value, known: Mapping[Value, Origin]) -> set[Value]:
        """What arithmetic is about, numbers aside: x of `0.8 * (x + 0.04 * x**3)`."""
        found, seen, todo = set[Value](), set[Value](), [v]
        while todo:
            t = todo.pop()
            if t in seen or self._is_number(t, known):
                continue
            seen.add(t)
            if len(found) > 1 or len(seen) > _MOST_TERMS:
                return set()  # more than one
            if t.op in _TWO_OPERANDS:
                todo += t.inputs[:2]
            elif t.op in OPS and OPS[t.op].keeps_sizes:
                todo.append(t.inputs[0])
            else:
                found.add(t)
        return found

    def _is_number(self, v: Value, known: Mapping[Value, Origin]) -> bool:
        fact = self.captured.known.get(v)
        return known.get(v) is Origin.PLAIN or fact is not None and fact.number is True


def evidence_against(captured: CapturedFunction, v: Value) -> bool:
    """Whether a value is asked for what only arrays of numpy's kind have."""
    reads = [u for u in captured.graph.users[v] if u.op == ATTRIBUTE]
    return any(u.data in OF_ARRAYS for u in reads)


def _flat(v: Value) -> Iterable[Value]:
    for i in v.inputs:
        if i.op == TUPLE:
            yield from _flat(i)
        else:
            yield i


def _of_class(name: str) -> Origin | None:
    if name.startswith("torch.") and (name.endswith("Tensor") or name.endswith("Parameter")):
        return Origin.TENSOR
    return Origin.ARRAY if root(name) in ARRAYS else None


def _agreed(found: Iterable[Origin | None]) -> Origin | None:
    """What all of several values are, numbers and None aside."""
    rest = set(found) - {Origin.PLAIN}
    return rest.pop() if len(rest) == 1 else None


def _combined(found: list[Origin | None]) -> Origin | None:
    """What arithmetic gives: with a tensor in it a tensor, else with an array an array."""
    return next((o for o in (Origin.TENSOR, Origin.ARRAY) if o in found), None)
