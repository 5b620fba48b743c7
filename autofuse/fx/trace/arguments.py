"""The arguments of one call -> what forward gets to see of them, placeholders for the tensors, and guards.

Containers are made anew and watched (containers.py), objects have stand-ins (foreign_objects.py). What is given twice
is one thing for forward too.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.code_effects import is_copied, is_harmless
from autofuse.fx.trace.containers import Tracked
from autofuse.fx.trace.contents import State, empty_like, fill, is_mutable, is_sentinel, state_of
from autofuse.fx.trace.identity_tests import compares_arguments, outsiders
from autofuse.fx.trace.recorder import Recorder
from autofuse.fx.trace.same_values import needs_strict_comparison
from autofuse.fx.trace.twin import SCALARS, original_class, plain_class
from autofuse.fx.trace.unseen_copies import UnseenCopies, guard_methods
from autofuse.fx.trace.values import HeldTensor, Untraceable
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FakeTensor, FakeTensorMode, fake_mode

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_KEYS = (str, int, float, bool, type(None), Enum)


class Arguments:
    """Turns the arguments of one call into placeholders and guards."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.guards = recorder, recorder.guards
        self.texts: list[str] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self._classes: dict[str, type] = {}  # of tensors, by how they are reached
        self._copies = UnseenCopies(self._fake, watched=True)
        self._known: dict[int, tuple[Any, str, Any]] = {}  # id of a container or an object -> it, its text, its copy
        self._nodes: dict[str, fx.Node] = {}
        cls: Any = plain_class(original_class(type(recorder.root)))
        self.told_apart = compares_arguments(cls)  # whether it matters that two tensors are one
        recorder.bind = self.value

    def check_identity(self, forward: Any, given: Mapping[str, Any]) -> None:
        """Raises Untraceable where forward asks whether an argument that has a stand-in is an object of its own."""
        code = getattr(inspect.unwrap(forward), "__code__", None)
        for name in outsiders(code) if code is not None else ():
            value = given.get(name)
            if not isinstance(value, (*SCALARS, type, *_FUNCTIONS)) and not is_sentinel(value):
                raise Untraceable(because(forwards.COMPARES_ARGUMENT, name=name))

    def parameter(self, parameter: inspect.Parameter, value: Any) -> tuple[inspect.Parameter, Any]:
        if parameter.kind is parameter.VAR_KEYWORD:
            ordered = f"tuple({parameter.name}) == {self.guards.name_of(tuple(value))}"
            few = f"{parameter.name}.keys() == {set(value) or '_EMPTY'}"
            self.guards.add(few if len(value) < 2 else ordered)  # one key has one order
            return parameter, {k: self.value(v, f"{parameter.name}[{k!r}]") for k, v in value.items()}
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.guards.add(f"len({parameter.name}) == {len(value)}")
            return parameter, [self.value(v, f"{parameter.name}[{i}]") for i, v in enumerate(value)]
        return parameter, self.value(value, parameter.name)

    def value(self, value: Any, text: str) -> Any:
        """What forward gets to see of an argument, or of a part of one."""
        if isinstance(value, Tensor):
            return self.tensor(value, text)
        if isinstance(value, SCALARS) and (isinstance(value, Enum) or not getattr(value, "__dict__", None)):
            self.guards.equal(text, value)
            return value
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__setitem__"):
            return self.number(value, text)
        if isinstance(value, torch.SymInt):
            raise Untraceable(because(forwards.SYMBOLIC_SIZE, name=text))
        if isinstance(value, nn.Module):
            return self.module(value, text)
        if isinstance(value, type) or isinstance(value, _FUNCTIONS) and is_harmless(value):
            self.guards.same(text, value)
            if isinstance(value, type):
                self.recorder.classes_given.append(value)
            return value
        if id(value) in self._known:
            _, first, made = self._known[id(value)]
            if first != text:
                self.guards.add(f"{text} is {first}")
            return made
        made = self._made(value, text)
        self._known[id(value)] = value, text, made
        return made

    def _made(self, value: Any, text: str) -> Any:
        if isinstance(value, tuple):
            return self.tuple(value, text)
        if is_mutable(value):
            return self.container(value, text)
        if is_sentinel(value):
            self.guards.same(text, value)
            return value
        if (
            isinstance(value, SCALARS)
            or not is_copied(value)
            or isinstance(value, (types.MethodType, functools.partial))
        ):
            return foreign.Untouchable(self.recorder, value, text)
        node = self.placeholder(text)
        node.meta["v"] = real = self._copies.of(value)
        self.guards.same(f"type({text})", original_class(type(value)))
        return self.recorder.stand_in(node, real, text)

    def number(self, value: Any, text: str) -> Any:
        """A number of numpy's."""
        self.guards.same(f"type({text})", type(value))
        self.guards.add(f"{text} == {self.guards.name_of(value)}")
        return value

    def module(self, value: nn.Module, text: str) -> nn.Module:
        """A module of the same class does as well: it is called, not read."""
        self.guards.same(f"type({text})", plain_class(original_class(type(value))))
        return self.recorder.handed_in(value, self.placeholder(text), text)

    def tuple(self, value: Any, text: str) -> Any:
        self.guards.same(f"type({text})", original_class(type(value)))
        self.guards.add(f"len({text}) == {len(value)}")
        parts = [self.value(v, f"{text}[{i}]") for i, v in enumerate(value)]
        made = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        self.recorder.tuples[id(made)] = made, lambda: self.whole(text, value)
        return made

    def container(self, value: Any, text: str) -> Any:
        """A container of the same class, with what forward gets to see in it."""
        self.guards.same(f"type({text})", original_class(type(value)))
        made = empty_like(value)
        guard_methods(made, value)
        self._known[id(value)] = value, text, made  # first: it may hold itself
        held = state_of(value)
        if held.members is not None:
            self._guard_members(held.members, text)
        self._guard_lengths(held, text, isinstance(value, dict))
        fill(made, self._parts(held, text))
        self.recorder.track(made, lambda: self.whole(text, made), text)
        return made

    def _guard_lengths(self, held: State, text: str, mapping: bool) -> None:
        if held.items is not None:
            keys = tuple(held.items)
            if not all(map(_is_key, keys)):
                raise Untraceable(because(forwards.STORES_UNDER_OBJECT))
            few = len(keys) < 2 or not mapping  # one key has one order
            named = f"tuple({text}) == {self.guards.name_of(keys)}"
            if needs_strict_comparison(keys):
                named = f"_holds(tuple({text}), {self.guards.name_of(keys)})"
            self.guards.add(f"{text}.keys() == {set(keys) or '_EMPTY'}" if few and _spelled(keys) else named)
        if held.elements is not None:
            self.guards.add(f"len({text}) == {len(held.elements)}")

    def _guard_members(self, members: frozenset[Any], text: str) -> None:
        if not all(map(_is_key, members)):
            raise Untraceable(because(forwards.STORES_UNDER_OBJECT))
        same = f"frozenset({text}) == {self.guards.name_of(members)}"
        self.guards.add(
            f"_holds(frozenset({text}), {self.guards.name_of(members)})" if needs_strict_comparison(members) else same
        )

    def _parts(self, held: State, text: str) -> State:
        return State(
            None if held.items is None else {k: self.value(v, self._item(text, k)) for k, v in held.items.items()},
            None if held.elements is None else [self.value(v, f"{text}[{i}]") for i, v in enumerate(held.elements)],
            held.members,
            {n: self.value(v, f"{text}.{n}") for n, v in held.attributes.items()},
        )

    def _item(self, text: str, key: Any) -> str:
        return f"{text}[{self.guards.name_of(key)}]"

    def whole(self, text: str, made: Any) -> fx.Node:
        """A placeholder for a container as a whole, made when it is needed."""
        if text not in self._nodes:
            self._nodes[text] = self.placeholder(text)
            self._nodes[text].meta["v"] = made
        return self._nodes[text]

    def tensor(self, value: Tensor, text: str) -> Tensor:
        if self.told_apart:
            if id(value) in self._known:
                _, first, made = self._known[id(value)]
                self.guards.add(f"{text} is {first}")
                return made  # type: ignore[no-any-return]
            for first, _ in self.tensors:
                self.guards.add(f"{text} is not {first}")
        fake = self._fake(value)
        self._known[id(value)] = value, text, fake
        node = self.placeholder(text)
        node.meta["v"] = fake
        sizes = tuple(f"{text}.shape[{d}]" for d in range(fake.dim()))
        self.recorder.held[id(fake)] = HeldTensor(fake, lambda: node, sizes, text, node)
        self.guards.add(f"_keeps_functions({text})")
        self.guards.same(f"{text}.dtype", fake.dtype)
        self.guards.add(f"{text}.ndim == {fake.dim()}")
        self.tensors.append((text, fake))
        self._classes[text] = Tensor if isinstance(value, FakeTensor) else type(value)
        return fake

    def _fake(self, x: Tensor) -> Tensor:
        """A fake of its own for each argument, so that the same tensor passed twice is two arguments."""
        mode = fake_mode()
        assert isinstance(mode, FakeTensorMode)
        source = x if isinstance(x, FakeTensor) else mode.from_tensor(x.detach(), static_shapes=True)
        with torch.no_grad():
            fake = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
        # no leaf: forward may write to an activation in place
        return fake.requires_grad_().clone() if x.requires_grad and x.dtype.is_floating_point else fake

    def placeholder(self, text: str) -> fx.Node:
        graph = self.recorder.graph
        first = next((n for n in graph.nodes if n.op != "placeholder"), None)
        if first is None:
            node = graph.placeholder(f"in{len(self.texts)}")
        else:  # an attribute of an object is read in the middle
            with graph.inserting_before(first):
                node = graph.placeholder(f"in{len(self.texts)}")
        self.texts.append(text)
        return node

    def finish(self) -> None:
        """Guards on what all tensors share, and on containers that are others."""
        if self.recorder.reads_dtype:
            self.parameter_dtypes()
        if self.tensors:
            text, first = self.tensors[0]
            on_cpu = first.device == torch.device("cpu")
            self.guards.add(f"{text}.is_cpu") if on_cpu else self.guards.equal(f"{text}.device", first.device)
        if names := self.recorder.attributes_asked():
            asked = self.guards.name_of(names)
            for text, _ in self.tensors:
                self.guards.add(f"{asked}.isdisjoint({text}.__dict__)")
        test = self.recorder.class_guard()
        for text, cls in self._classes.items() if test else ():
            self.recorder.refuse_other_class(cls)
            self.guards.add(test.format(text, self.guards.constant(cls)))
        for text, fake in self.tensors if self.recorder.exact else ():
            self.guards.add(f"{text}.shape == {tuple(fake.shape)}")
        self._guard_others()

    def _guard_others(self) -> None:
        """A container that forward writes to is none of the others."""
        came = [t for t in self.recorder.tracked.values() if t.text is not None]
        for one, other in itertools.combinations(came, 2):
            if (one.written or other.written) and _alike(one, other):
                self.guards.add(f"{one.text} is not {other.text}")

    def parameter_dtypes(self) -> None:
        """A dtype that forward asked for may follow from the parameters'."""
        for path, module in self.recorder.root.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.dtype.is_floating_point:
                    self.guards.same(f'_held({guard_path(path)}, "_parameters", "{name}").dtype', parameter.dtype)
                    return


def _alike(one: Tracked, other: Tracked) -> bool:
    return type(one.live) is type(other.live)


def _is_key(key: Any) -> bool:
    return isinstance(key, _KEYS) or isinstance(key, tuple) and all(map(_is_key, key))


def _spelled(keys: tuple[Any, ...]) -> bool:
    return all(type(k) is str for k in keys)
