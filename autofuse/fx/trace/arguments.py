"""Turns the arguments of one call into what forward sees, placeholders for the tensors, and guards.

Containers are copied and tracked (containers.py). Objects get stand-ins (foreign_objects.py). An object that is passed
twice is one object for forward too.
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
from autofuse.fx.trace.identity_tests import compares_arguments, names_compared_with_nonlocal
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
        self._classes: dict[str, type] = {}  # guard text of a tensor -> its class
        self._copies = UnseenCopies(self._fake, watched=True)
        self._known: dict[int, tuple[Any, str, Any]] = {}  # id of an object -> it, its guard text, its copy
        self._nodes: dict[str, fx.Node] = {}
        cls: Any = plain_class(original_class(type(recorder.root)))
        self.compares_arguments = compares_arguments(cls)  # whether forward notices that two arguments are one tensor
        recorder.bind = self.value

    def check_identity(self, forward: Any, arguments: Mapping[str, Any]) -> None:
        """Refuse a forward that compares by identity an argument that has a stand-in.

        Args:
            forward: the function that is traced.
            arguments: the arguments by name.

        Raises:
            Untraceable: forward makes such a comparison.
        """
        code = getattr(inspect.unwrap(forward), "__code__", None)
        for name in names_compared_with_nonlocal(code) if code is not None else ():
            value = arguments.get(name)
            if not isinstance(value, (*SCALARS, type, *_FUNCTIONS)) and not is_sentinel(value):
                raise Untraceable(because(forwards.COMPARES_ARGUMENT, name=name))

    def parameter(self, parameter: inspect.Parameter, value: Any) -> tuple[inspect.Parameter, Any]:
        """The parameter and what forward sees as its argument. Adds guards on the number and the names of arguments."""
        if parameter.kind is parameter.VAR_KEYWORD:
            ordered_keys = f"tuple({parameter.name}) == {self.guards.name_of(tuple(value))}"
            same_keys = f"{parameter.name}.keys() == {set(value) or '_EMPTY'}"
            self.guards.add(same_keys if len(value) < 2 else ordered_keys)  # one key has one order
            return parameter, {k: self.value(v, f"{parameter.name}[{k!r}]") for k, v in value.items()}
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.guards.add(f"len({parameter.name}) == {len(value)}")
            return parameter, [self.value(v, f"{parameter.name}[{i}]") for i, v in enumerate(value)]
        return parameter, self.value(value, parameter.name)

    def value(self, value: Any, text: str) -> Any:
        """The value that forward sees in place of an argument or a part of one.

        Args:
            value: the argument.
            text: the expression by which a guard reads it.

        Raises:
            Untraceable: a guard cannot describe the value.
        """
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
                self.recorder.argument_classes.append(value)
            return value
        if id(value) in self._known:
            _, first_text, copy = self._known[id(value)]
            if first_text != text:
                self.guards.add(f"{text} is {first_text}")
            return copy
        copy = self._stand_in_for(value, text)
        self._known[id(value)] = value, text, copy
        return copy

    def _stand_in_for(self, value: Any, text: str) -> Any:
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
            return foreign.UnusableObject(self.recorder, value, text)
        node = self.placeholder(text)
        node.meta["v"] = real = self._copies.of(value)
        self.guards.same(f"type({text})", original_class(type(value)))
        return self.recorder.stand_in(node, real, text)

    def number(self, value: Any, text: str) -> Any:
        """A numpy scalar."""
        self.guards.same(f"type({text})", type(value))
        self.guards.add(f"{text} == {self.guards.name_of(value)}")
        return value

    def module(self, value: nn.Module, text: str) -> nn.Module:
        """A module. Another module of the same class is as good, because forward calls it and does not read it."""
        self.guards.same(f"type({text})", plain_class(original_class(type(value))))
        return self.recorder.module_argument(value, self.placeholder(text), text)

    def tuple(self, value: Any, text: str) -> Any:
        """A tuple, or a named tuple, of what forward sees of the items."""
        self.guards.same(f"type({text})", original_class(type(value)))
        self.guards.add(f"len({text}) == {len(value)}")
        parts = [self.value(v, f"{text}[{i}]") for i, v in enumerate(value)]
        copy = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        self.recorder.tuples[id(copy)] = copy, lambda: self.container_placeholder(text, value)
        return copy

    def container(self, value: Any, text: str) -> Any:
        """A container of the same class that holds what forward sees of the contents."""
        self.guards.same(f"type({text})", original_class(type(value)))
        copy = empty_like(value)
        guard_methods(copy, value)
        self._known[id(value)] = value, text, copy  # before the contents: the container may hold itself
        state = state_of(value)
        if state.members is not None:
            self._guard_members(state.members, text)
        self._guard_lengths(state, text, isinstance(value, dict))
        fill(copy, self._parts(state, text))
        self.recorder.track(copy, lambda: self.container_placeholder(text, copy), text)
        return copy

    def _guard_lengths(self, state: State, text: str, mapping: bool) -> None:
        if state.items is not None:
            keys = tuple(state.items)
            if not all(map(_is_key, keys)):
                raise Untraceable(because(forwards.STORES_UNDER_OBJECT))
            has_one_order = len(keys) < 2 or not mapping
            ordered_keys = f"tuple({text}) == {self.guards.name_of(keys)}"
            if needs_strict_comparison(keys):
                ordered_keys = f"_holds(tuple({text}), {self.guards.name_of(keys)})"
            self.guards.add(
                f"{text}.keys() == {set(keys) or '_EMPTY'}" if has_one_order and _are_strings(keys) else ordered_keys
            )
        if state.elements is not None:
            self.guards.add(f"len({text}) == {len(state.elements)}")

    def _guard_members(self, members: frozenset[Any], text: str) -> None:
        if not all(map(_is_key, members)):
            raise Untraceable(because(forwards.STORES_UNDER_OBJECT))
        same = f"frozenset({text}) == {self.guards.name_of(members)}"
        self.guards.add(
            f"_holds(frozenset({text}), {self.guards.name_of(members)})" if needs_strict_comparison(members) else same
        )

    def _parts(self, state: State, text: str) -> State:
        return State(
            None if state.items is None else {k: self.value(v, self._item(text, k)) for k, v in state.items.items()},
            None if state.elements is None else [self.value(v, f"{text}[{i}]") for i, v in enumerate(state.elements)],
            state.members,
            {n: self.value(v, f"{text}.{n}") for n, v in state.attributes.items()},
        )

    def _item(self, text: str, key: Any) -> str:
        return f"{text}[{self.guards.name_of(key)}]"

    def container_placeholder(self, text: str, copy: Any) -> fx.Node:
        """The placeholder of a container itself. It is created when it is first needed."""
        if text not in self._nodes:
            self._nodes[text] = self.placeholder(text)
            self._nodes[text].meta["v"] = copy
        return self._nodes[text]

    def tensor(self, value: Tensor, text: str) -> Tensor:
        """The fake tensor for a tensor. Adds a placeholder and guards on dtype, rank, layout and class."""
        if self.compares_arguments:
            if id(value) in self._known:
                _, first_text, copy = self._known[id(value)]
                self.guards.add(f"{text} is {first_text}")
                return copy  # type: ignore[no-any-return]
            for first_text, _ in self.tensors:
                self.guards.add(f"{text} is not {first_text}")
        fake = self._fake(value)
        self._known[id(value)] = value, text, fake
        node = self.placeholder(text)
        node.meta["v"] = fake
        sizes = tuple(f"{text}.shape[{d}]" for d in range(fake.dim()))
        self.recorder.held[id(fake)] = HeldTensor(fake, lambda: node, sizes, text, node)
        self.guards.add(f"_keeps_functions({text})")
        self.guards.same(f"{text}.dtype", fake.dtype)
        self.guards.add(f"{text}.ndim == {fake.dim()}")
        self.guards.add(f"not {text}.is_nested")
        self.guards.same(f"{text}.layout", fake.layout)
        self.tensors.append((text, fake))
        self._classes[text] = Tensor if isinstance(value, FakeTensor) else type(value)
        return fake

    def _fake(self, x: Tensor) -> Tensor:
        """A separate fake tensor for each argument, so that the same tensor passed twice counts as two arguments."""
        mode = fake_mode()
        assert isinstance(mode, FakeTensorMode)
        source = x if isinstance(x, FakeTensor) else mode.from_tensor(x.detach(), static_shapes=True)
        with torch.no_grad():
            fake = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
        # A clone is not a leaf: forward may write to an activation in place, but not to a leaf.
        return fake.requires_grad_().clone() if x.requires_grad and x.dtype.is_floating_point else fake

    def placeholder(self, text: str) -> fx.Node:
        """A new placeholder for the value of the guard text `text`."""
        graph = self.recorder.graph
        first_node = next((n for n in graph.nodes if n.op != "placeholder"), None)
        if first_node is None:
            node = graph.placeholder(f"in{len(self.texts)}")
        else:  # placeholders come first in a graph, and the attribute of an object is read later
            with graph.inserting_before(first_node):
                node = graph.placeholder(f"in{len(self.texts)}")
        self.texts.append(text)
        return node

    def finish(self) -> None:
        """Add the guards on what all tensors share and on containers that must be distinct."""
        if self.recorder.reads_dtype:
            self.parameter_dtypes()
        if self.tensors:
            text, tensor = self.tensors[0]
            on_cpu = tensor.device == torch.device("cpu")
            self.guards.add(f"{text}.is_cpu") if on_cpu else self.guards.equal(f"{text}.device", tensor.device)
        if names := self.recorder.probed_attributes():
            constant = self.guards.name_of(names)
            for text, _ in self.tensors:
                self.guards.add(f"{constant}.isdisjoint({text}.__dict__)")
        test = self.recorder.class_guard()
        for text, cls in self._classes.items() if test else ():
            self.recorder.refuse_other_class(cls)
            self.guards.add(test.format(text, self.guards.constant(cls)))
        for text, fake in self.tensors if self.recorder.exact else ():
            self.guards.add(f"{text}.shape == {tuple(fake.shape)}")
        self._guard_distinct_containers()

    def _guard_distinct_containers(self) -> None:
        """A container that forward writes to must not be one of the others."""
        from_arguments = [t for t in self.recorder.tracked.values() if t.text is not None]
        for one, other in itertools.combinations(from_arguments, 2):
            if (one.written or other.written) and _have_same_class(one, other):
                self.guards.add(f"{one.text} is not {other.text}")

    def parameter_dtypes(self) -> None:
        """Guard the dtype of the first floating-point parameter: a dtype that forward reads may follow from it."""
        for path, module in self.recorder.root.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.dtype.is_floating_point:
                    self.guards.same(f'_held({guard_path(path)}, "_parameters", "{name}").dtype', parameter.dtype)
                    return


def _have_same_class(one: Tracked, other: Tracked) -> bool:
    return type(one.live) is type(other.live)


def _is_key(key: Any) -> bool:
    return isinstance(key, _KEYS) or isinstance(key, tuple) and all(map(_is_key, key))


def _are_strings(keys: tuple[Any, ...]) -> bool:
    return all(type(k) is str for k in keys)
