"""Finds out which values of a function are torch tensors, and which are arrays of another library.

There are two kinds of evidence:

- How a value was computed: by a torch call, from an argument of a forward, by arithmetic with a tensor.
- How the code uses it: in a torch function, which accepts only tensors, or through a method that only tensors have.

This file reads the captured graph. It decides nothing about edits.
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
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.evidence.annotations import Origin
from autofuse.source.evidence.arguments import argument_origins, has_torch_like_arrays, is_module
from autofuse.source.evidence.attributes import (
    attribute_origin,
    expression_origin,
    is_child,
    is_tensor_of_child,
    is_torch_child,
)
from autofuse.source.evidence.libraries import (
    ARRAY_LIBRARIES,
    ARRAY_METHODS,
    PLAIN_METHODS,
    TENSOR_METHODS,
    package_of,
    requires_tensor,
    returns_tensor,
)
from autofuse.source.evidence.spellings import has_torch_only_arguments, is_torch_function, is_torch_method

_NO_VALUES = frozenset({SINK, IS_NONE, NOT, MODULE, SLICE})
_OF_NUMBERS = frozenset("number_sqrt number_pow number finfo".split())
_TWO_OPERANDS = frozenset("add sub rsub mul div floordiv mod pow".split())
_BOTH_OPERANDS = frozenset({"matmul"})
_LOSSES = frozenset({"nll_loss", "cross_entropy", "linear"})
_CONTAINERS = frozenset({"cat", "stack", "einsum"})
_ANY_INPUT = frozenset("tensor ones zeros full arange where finfo number pow add mul sub div activation".split())
_JOINS = ("an element", "changed", "assigned", "one of several", "computed in", "shares memory", "written by")


_VALUES_PER_STEP = 8  # the budget counts one step for this many values, since a repeated look at a value is cheap
_MAX_TERMS = 64  # of a sum or a product


@dataclass
class Origins:
    """The origins of the values of one function; `computed_origins` follow from how a value was computed."""

    defined: DefinedFunction
    captured: CapturedFunction
    computed_origins: dict[Value, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._arguments = argument_origins(self.defined)
        self._lookalikes = has_torch_like_arrays(self.defined.scope)
        self._module = self.defined.owner is not None and is_module(self.defined.scope, self.defined.owner)
        for v in self.captured.graph.values:
            if (origin := self._origin_of(v, self.computed_origins)) is not None:
                self.computed_origins[v] = origin

    def at(self, uses: Iterable[Value], assumed: Mapping[Value, Origin]) -> dict[Value, Origin]:
        """Return the origins that hold where all of `uses` are computed.

        Args:
            uses: values that run whenever the code in question runs.
            assumed: origins known from elsewhere, such as the outcome of a test.
        """
        known, together = {**self.computed_origins, **assumed}, list(uses)
        while True:
            size = len(known)
            spend(1 + len(self.captured.graph.values) // _VALUES_PER_STEP)
            for v in together:
                for used in self._required_tensors(v):
                    known.setdefault(used, Origin.TENSOR)
            # Later values first: a tensor result shows that its inputs are tensors, and so on backwards.
            for v in reversed(together):
                if known.get(v) is Origin.TENSOR:
                    for source in self._sources(v, known):
                        known.setdefault(source, Origin.TENSOR)
            for v in self.captured.graph.values:
                if v not in known and (origin := self._origin_of(v, known)) is not None:
                    known[v] = origin
            if len(known) == size:
                return known

    # Evidence from how a value was computed.

    def _origin_of(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        if v.op in _NO_VALUES:
            return None
        if v.op == CONST:
            return Origin.PLAIN
        if v.op == PARAMETER:
            return self._arguments.get(str(v.data))
        if v.op == GLOBAL:
            return self._global_origin(str(v.data))
        if v.op == ATTRIBUTE:
            return self._attribute_origin(v, known)
        if v.op == CALL:
            return self._call_origin(v, known)
        if v.op == CHOICE:
            return self._choice_origin(v, known)
        if v.op == ITEM:
            origin = known.get(v.inputs[0])
            return None if origin is Origin.PLAIN else origin
        if v.op in (TUPLE, SYNTAX) or v.op == OPAQUE and str(v.data).startswith(_JOINS):
            return _common_origin(known.get(i) for i in v.inputs)
        if v.op not in OPS:
            return None
        return self._operation_origin(v, known)

    def _operation_origin(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        if OPS[v.op].effect == "metadata" or v.op in _OF_NUMBERS:
            return Origin.PLAIN
        if any(map(is_torch_function, self.captured.spellings.get(v, ()))):
            return Origin.TENSOR
        return _arithmetic_origin([known.get(i) for i in v.inputs])

    def _global_origin(self, name: str) -> Origin | None:
        value = self.defined.scope.variables.get(name)
        return None if value is None else expression_origin(self.defined.scope, value)

    def _attribute_origin(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        owner, name = v.inputs[0], str(v.data)
        if qualified_name(v) is not None or v.data in METADATA:
            return None
        if self._is_instance(owner) and (origin := attribute_origin(self.defined.scope, self.defined.owner, name)):
            return origin
        if known.get(owner) is not None and owner.op != CONST:
            return known[owner] if name not in ("shape", "dtype") else Origin.PLAIN
        if self._is_instance(owner):
            return None
        container = owner.inputs[0] if owner.op == ITEM else owner
        if (
            is_tensor_of_child(name)
            and container.op == ATTRIBUTE
            and self._is_instance(container.inputs[0])
            and self._module
        ):
            return Origin.TENSOR
        return None

    def _is_instance(self, v: Value) -> bool:
        return v.op == PARAMETER and self.defined.owner is not None and v.data == self._self_name()

    def _self_name(self) -> str | None:
        arguments = self.defined.function.args
        first = [*arguments.posonlyargs, *arguments.args][:1]
        return self.defined.instance_name or (first[0].arg if first else None)

    def _call_origin(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        if name.startswith("torch."):
            return Origin.TENSOR if returns_tensor(name) else Origin.PLAIN
        if package_of(name) in ARRAY_LIBRARIES:
            return Origin.ARRAY
        function = v.inputs[0] if v.inputs else v
        if name.startswith(".") and function.op == ATTRIBUTE:
            return self._method_origin(name[1:], function.inputs[0], v.inputs[1:], known)
        if function.op in (ATTRIBUTE, ITEM):  # self.layers[0](x)
            return _arithmetic_origin([known.get(i) for i in v.inputs[1:]]) if self._module else None
        return None

    def _method_origin(
        self, name: str, owner: Value, arguments: tuple[Value, ...], known: Mapping[Value, Origin]
    ) -> Origin | None:
        origin = known.get(owner)
        if name in PLAIN_METHODS:
            return Origin.PLAIN
        if name == "numpy" and not arguments:
            return Origin.ARRAY
        if origin in (Origin.TENSOR, Origin.ARRAY):
            return origin
        if not self._is_instance(owner) or not self._module:
            return None
        if is_child(self.defined.scope, self.defined.owner, name):
            return Origin.TENSOR
        return None

    def _choice_origin(self, v: Value, known: Mapping[Value, Origin]) -> Origin | None:
        """The origin of a conditional value: `x if isinstance(x, torch.Tensor) else torch.tensor(x)` is a tensor."""
        test, yes, no = v.inputs
        tested_condition, is_negated = (test.inputs[0], True) if test.op == NOT else (test, False)
        sides = {yes: known.get(yes), no: known.get(no)}
        if (test_result := self.tested_origin(tested_condition)) is not None:
            tested, origin = test_result
            if tested is (no if is_negated else yes):
                sides[tested] = origin
        return _common_origin(sides.values())

    def tested_origin(self, test: Value) -> tuple[Value, Origin] | None:
        """Return the value that `isinstance(x, C)` tests, and its origin if the test is true; None for another test."""
        name = str(test.data[0]) if test.op == CALL and isinstance(test.data, tuple) else ""
        if name == "torch.is_tensor" and len(test.inputs) == 2:
            return test.inputs[1], Origin.TENSOR
        if name != "isinstance" or len(test.inputs) != 3:
            return None
        classes = test.inputs[2].inputs if test.inputs[2].op == TUPLE else (test.inputs[2],)
        origins = {_class_origin(qualified_name(c) or str(c.data)) for c in classes}
        return (test.inputs[1], origin) if len(origins) == 1 and (origin := origins.pop()) is not None else None

    # Evidence from how a value is used.

    def _required_tensors(self, v: Value) -> Iterable[Value]:
        """Yield the inputs of `v` that must be tensors, because the operation raises an error for anything else."""
        if v.op in OPS:
            spelled = self.captured.spellings.get(v, set())
            functions = any(map(is_torch_function, spelled)) and v.op not in _ANY_INPUT
            methods = not self._lookalikes and (
                any(map(is_torch_method, spelled)) or has_torch_only_arguments(v, spelled)
            )
            if not functions and not methods:
                return
            if v.op in _CONTAINERS:
                yield from (i for part in v.inputs if part.op == TUPLE for i in _flatten(part))
            elif v.op in _BOTH_OPERANDS or v.op in _LOSSES:
                yield from v.inputs[:2]
            elif v.inputs:
                yield v.inputs[0]
        elif v.op == CALL and isinstance(v.data, tuple) and v.inputs:
            yield from self._tensors_required_by_call(str(v.data[0]), v)

    def _tensors_required_by_call(self, name: str, v: Value) -> Iterable[Value]:
        function = v.inputs[0]
        if requires_tensor(name) and len(v.inputs) > 1:
            yield v.inputs[1]
        elif name.startswith(".") and function.op == ATTRIBUTE:
            owner = function.inputs[0]
            if name[1:] in TENSOR_METHODS and not self._lookalikes and not self._is_instance(owner):
                yield owner
            elif self._is_instance(owner) and is_torch_child(self.defined.scope, self.defined.owner, name[1:]):
                yield from v.inputs[1:2]

    def _sources(self, v: Value, known: Mapping[Value, Origin]) -> Iterable[Value]:
        """Yield the inputs that are tensors because `v` is one."""
        spelled = self.captured.spellings.get(v, set())
        if v.op in _BOTH_OPERANDS:
            yield from v.inputs[:2]
        elif v.op in _TWO_OPERANDS:
            terms = self._terms(v, known)
            if len(terms) == 1 and not any(known.get(t) for t in terms):
                yield from terms
        elif v.op in OPS and v.op not in _ANY_INPUT and v.op not in _CONTAINERS and v.inputs:
            if OPS[v.op].effect != "metadata" and (spelled or v.op == "mT"):
                yield v.inputs[0]
        elif v.op == CHOICE:
            yield from (i for i in v.inputs[1:] if not self._is_number(i, known))

    def _terms(self, v: Value, known: Mapping[Value, Origin]) -> set[Value]:
        """The operands of an arithmetic expression without numbers: x of `0.8 * (x + 0.04 * x**3)`."""
        terms, visited, pending = set[Value](), set[Value](), [v]
        while pending:
            term = pending.pop()
            if term in visited or self._is_number(term, known):
                continue
            visited.add(term)
            if len(terms) > 1 or len(visited) > _MAX_TERMS:
                return set()  # with two operands, either may be the tensor
            if term.op in _TWO_OPERANDS:
                pending += term.inputs[:2]
            elif term.op in OPS and OPS[term.op].keeps_sizes:
                pending.append(term.inputs[0])
            else:
                terms.add(term)
        return terms

    def _is_number(self, v: Value, known: Mapping[Value, Origin]) -> bool:
        fact = self.captured.known.get(v)
        return known.get(v) is Origin.PLAIN or fact is not None and fact.number is True


def is_used_as_array(captured: CapturedFunction, v: Value) -> bool:
    """Whether the code reads an attribute that only arrays of numpy's kind have."""
    reads = [u for u in captured.graph.users[v] if u.op == ATTRIBUTE]
    return any(u.data in ARRAY_METHODS for u in reads)


def _flatten(v: Value) -> Iterable[Value]:
    for i in v.inputs:
        if i.op == TUPLE:
            yield from _flatten(i)
        else:
            yield i


def _class_origin(name: str) -> Origin | None:
    if name.startswith("torch.") and (name.endswith("Tensor") or name.endswith("Parameter")):
        return Origin.TENSOR
    return Origin.ARRAY if package_of(name) in ARRAY_LIBRARIES else None


def _common_origin(origins: Iterable[Origin | None]) -> Origin | None:
    """The origin that all values share, apart from numbers and None; None if they differ."""
    others = set(origins) - {Origin.PLAIN}
    return others.pop() if len(others) == 1 else None


def _arithmetic_origin(origins: list[Origin | None]) -> Origin | None:
    """The origin of an arithmetic result: a tensor if one operand is a tensor, else an array if one is an array."""
    return next((o for o in (Origin.TENSOR, Origin.ARRAY) if o in origins), None)
