"""What a recorder does when its twin reads an attribute.

Attributes that are plain values become guards, tensors become reads of that attribute. Writing to an attribute, or to
a list or a dict that an attribute holds, ends the trace: a graph would not repeat it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.trace.ambient_state import random_states
from autofuse.fx.trace.foreign_calls import ForeignCalls
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.fx.trace.twin import CODE, CONTAINERS, SCALARS
from autofuse.fx.trace.values import Held, Untraceable, tensors
from autofuse.ir.vocabulary import MODULES
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

_NOTHING = object()
_PARAMETERS = 2  # a weight and a bias


class AttributeReads(ForeignCalls):
    """What a Recorder hears of attributes."""

    def begin_watching(self) -> None:
        self.owners: dict[int, str] = {}  # id of a twin -> how a guard reaches it
        self.paths: dict[int, str] = {}  # id of a twin module -> its name below the root
        self.seen_through: set[str] = set()  # children that were entered
        self.handed: dict[int, fx.Node] = {}  # id of a twin module that is an argument -> its placeholder
        self._snapshots: list[tuple[str, Any, list[Any], SourceLine | None]] = []
        self._tables: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._keep: list[Any] = []
        for name, module in self.root.named_modules():
            self._tables.append((module, dict(module._buffers)))
            self.owners[id(module)], self.paths[id(module)] = guard_path(name), name
        self._random = random_states()

    def finish_watching(self) -> None:
        """Raises Untraceable where forward changed a container that outlives it, or drew random numbers unseen."""
        for text, container, before, place in self._snapshots:
            after = _contents(container)
            if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
                raise Untraceable(because(forwards.CHANGES, target=text), place, passing=True)
        for module, buffers in self._tables:
            for name, x in module._buffers.items():
                if x is not buffers.get(name) and self.itself.get(id(x), _NOTHING) is not buffers.get(name):
                    self.refuse(because(forwards.REGISTERS_BUFFER, name=name), passing=True)
        if random_states() != self._random:
            self.refuse(because(forwards.DRAWS_RANDOM))

    def belongs_to_module(self, container: Any) -> bool:
        return self.lies_outside(container) or any(held is container for _, held, *_ in self._snapshots)

    def check_kept(self, kept: Iterable[Any]) -> None:
        """Raises Untraceable where forward kept something outside of the module that differs from call to call."""
        for value in kept:
            if not all(self.is_constant(t) for t in tensors(value)) or next(tensors(value), None) is None:
                self.refuse(because(forwards.KEEPS_OUTSIDE))

    # Attributes.

    def read(self, owner: Any, name: str, value: Any) -> Any:
        """`owner.name` was read and is `value`; what forward gets to see."""
        value = self._twin_of_object(owner, name, value)
        if self.paused:
            return value
        text = self.owners.get(id(owner))
        if isinstance(value, SCALARS):
            self._guard_scalar(owner, text, name, value)
        elif isinstance(value, (Tensor, *CONTAINERS)):
            with self.silence():
                self._register_held(value, owner, text, name)
        elif isinstance(value, CODE):
            self._guard_code(owner, text, name, value)
        elif not isinstance(value, nn.Module) and text is not None:
            self.owners.setdefault(id(value), f"{text}.{name}")
            self._keep.append(value)
        return value

    def missing(self, owner: Any, name: str) -> None:
        text = self.owners.get(id(owner))
        if text is not None:
            self.guards.add(f"_lacks({text}, {name!r})")

    def stored(self, owner: Any, name: str, value: Any) -> None:
        """`self.mask = self.mask.to(x.device)` mostly assigns what is there already."""
        if self._is_there(owner, name, value):
            return
        target = f"{'self' if owner is self.root else type(owner).__name__}.{name}"
        self.refuse(because(forwards.ASSIGNS, target=target), passing=True)

    def _is_there(self, owner: Any, name: str, value: Any) -> bool:
        inside = object.__getattribute__(owner, "__dict__")
        tables = [inside, *(inside.get(t) or {} for t in ("_buffers", "_parameters"))]
        there = next((t[name] for t in tables if name in t), _NOTHING)
        if isinstance(value, Tensor):
            return there is not _NOTHING and (value is there or self.itself.get(id(value)) is there)
        text = self.owners.get(id(owner))
        if text is None or not isinstance(value, SCALARS) or type(value) is not type(there) or value != there:
            return False
        self._guard_scalar(owner, text, name, value)
        return True

    def _twin_of_object(self, owner: Any, name: str, value: Any) -> Any:
        """Objects that are neither tensors nor modules are copied when they are first read."""
        inside = object.__getattribute__(owner, "__dict__")
        if inside.get(name) is not value or isinstance(value, (*SCALARS, *CONTAINERS, *CODE, Tensor, nn.Module)):
            return value
        with self.silence():
            made = self.world.of(value)
        inside[name] = made
        return made

    def _guard_scalar(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        if text is None:
            if isinstance(owner, nn.Module):
                self.refuse(because(forwards.READS_OTHER_MODULE, name=name))
            return
        if isinstance(vars(type(owner)).get(name) or _class_attribute(owner, name), property):
            return  # what the property reads is guarded
        if isinstance(owner, nn.Module) and value is None:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in owner.__dict__[table]:
                    self.guards.add(f'{text}.{table}["{name}"] is None')
                    return
        self.guards.equal(f"{text}.{name}", value)

    def _guard_code(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        """A function that an instance holds, such as its activation: another one may be put in its place."""
        if text is not None and name in object.__getattribute__(owner, "__dict__"):
            self._same_code(f"{text}.{name}", value)

    def _same_code(self, text: str, value: Any) -> None:
        if not isinstance(value, (types.MethodType, functools.partial)):
            self.guards.same(text, self.world.functions.get(id(value), value))
            self._same_closure(text, value)
            return
        self.guards.same(f"type({text})", type(value))  # copies of a module have one of their own
        if isinstance(value, types.MethodType):
            self.guards.same(f"{text}.__func__", value.__func__)
            return
        self._same_code(f"{text}.func", value.func)
        for place, given in enumerate(value.args):
            if isinstance(given, SCALARS):
                self.guards.equal(f"{text}.args[{place}]", given)
        for key, given in value.keywords.items():
            if isinstance(given, SCALARS):
                self.guards.equal(f"{text}.keywords.get({key!r})", given)

    def _same_closure(self, text: str, value: Any) -> None:
        """A copy of a module holds the same functions, which then run the original's children."""
        if id(value) not in self.world.functions:
            return
        for place, cell in enumerate(value.__closure__):
            if isinstance(cell.cell_contents, nn.Module) and id(cell.cell_contents) in self.paths:
                reach = guard_path(self.paths[id(cell.cell_contents)])
                self.guards.add(f"{text}.__closure__[{place}].cell_contents is {reach}")

    def _register_held(self, value: Any, owner: Any, text: str | None, name: str) -> None:
        if isinstance(value, Tensor):
            self._register_tensor(value, owner, name)
        elif text is not None:
            self._register_container(value, f"{text}.{name}", owner, name)

    def _register_tensor(self, x: Tensor, owner: Any, name: str) -> None:
        """A tensor that is a plain attribute (parameters and buffers are found by parameter())."""
        if id(x) in self.held or self.parameter(x) is not None:
            return
        if isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            self.hold(x, lambda: self.graph.get_attr(target), _fixed_sizes(x))
            self.guards.add(f"isinstance({self.owners[id(owner)]}.{name}, _Tensor)")

    def _register_container(self, value: Any, text: str, owner: Any, name: str) -> None:
        if any(container is value for _, container, *_ in self._snapshots):
            return
        self._snapshots.append((text, value, _contents(value), user_place()))
        if _plain(value):
            self.guards.equal(text, type(value)(value))
        elif isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            self._guard_content(value, text)
            self._register_items(value, lambda: self.graph.create_node("get_attr", target), text)

    def _guard_content(self, value: Any, text: str) -> None:
        """What a container holds stays there: a cache may be filled, or emptied, by another call."""
        if isinstance(value, dict):
            self.guards.add(f"{text}.keys() == {self.guards.name_of(frozenset(value))}")
        elif isinstance(value, (list, tuple)):
            self.guards.add(f"len({text}) == {len(value)}")

    def _register_items(self, value: Any, make: Callable[[], fx.Node], text: str) -> None:
        items: Iterator[tuple[Any, Any]] = iter(value.items()) if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            get = self._getter(make, key)
            if isinstance(item, Tensor) and id(item) not in self.held and self.parameter(item) is None:
                self.hold(item, get, _fixed_sizes(item))
            elif isinstance(item, (list, tuple, dict)):
                self._register_items(item, get, f"{text}[{key!r}]")
            elif isinstance(item, SCALARS):
                self.guards.equal(f"{text}[{key!r}]", item)

    def _getter(self, make: Callable[[], fx.Node], key: Any) -> Callable[[], fx.Node]:
        return lambda: self.graph.call_function(_getitem, (make(), key))

    def parameter(self, x: Tensor) -> Held | None:
        """Hold a parameter or a buffer below the root; None if `x` is neither."""
        for name, p in (
            *self.root.named_parameters(remove_duplicate=False),
            *self.root.named_buffers(remove_duplicate=False),
        ):
            if id(p) not in self.held:
                self.hold(p, self._attribute_maker(name), _fixed_sizes(p))
        return self.held.get(id(x))

    def _attribute_maker(self, name: str) -> Callable[[], fx.Node]:
        return lambda: self.graph.create_node("get_attr", name)


def guard_path(name: str) -> str:
    """How a guard reaches the module called `name` below self: nn.Module.__getattr__ would be slow."""
    return "self" + "".join(f'._modules["{part}"]' for part in name.split(".") if part)


def guard_inside(name: str, attribute: str) -> str:
    """How a guard reads what the instance itself keeps, in the module called `name` below self."""
    return f'{guard_path(name)}.__dict__["{attribute}"]'


def is_known(kind: type) -> bool:
    """Whether modules of exactly this class are one operation of the vocabulary."""
    return kind.__module__.startswith("torch.nn.modules.") and f"torch.nn.{kind.__name__}" in MODULES


def is_light(module: nn.Module) -> bool:
    """Whether a module is a layer of the vocabulary, or has a weight and a bias at most, and such layers without."""
    if is_known(type(module)):
        return True
    own = not type(module).__module__.startswith("torch.") and len(module._parameters) <= _PARAMETERS
    return own and all(is_known(type(m)) and not m._parameters for m in module.children())


def _getitem(container: Any, key: Any) -> Any:
    return container[key]


def _contents(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def _plain(value: Any) -> bool:
    return all(isinstance(v, SCALARS) or isinstance(v, (tuple, list, dict)) and _plain(v) for v in _contents(value))


def _fixed_sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)


def _class_attribute(owner: Any, name: str) -> Any:
    return next((vars(c)[name] for c in type(owner).__mro__ if name in vars(c)), None)
