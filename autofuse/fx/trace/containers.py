"""The containers of a trace, and what forward writes to them.

Forward changes stand-ins, which are lists and dicts like the caller's. What it has changed is written down where
somebody could see it: before a child or an object gets a container, and at the end. A container that forward has made
itself is written down when it gets out of its hands, once, so that it stays one object.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import fx

from autofuse.fx.trace import contents
from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.contents import State, empty_like, fill, is_mutable, state_of
from autofuse.fx.trace.source_lines import user_place
from autofuse.fx.trace.symbolic_sizes import Length
from autofuse.fx.trace.twin import SCALARS
from autofuse.fx.trace.values import Values, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

Where = tuple[Callable[..., Any] | None, Any]  # how a value is read from its container, and under which key
_NOTHING = object()


@dataclass
class Tracked:
    """A container: `live` is what forward has in hand, `state` what the graph has made of it so far."""

    live: Any
    make: Callable[[], fx.Node]
    text: str | None  # how a guard reaches it, if it came with the arguments
    state: State
    written: bool = False
    concrete: Any = None  # the same with example values, for code that is run on these
    given: dict[int, Any] = field(default_factory=dict)  # id of a value in `concrete` -> the value in `live`
    held: State | None = None  # what `live` held then
    handed: State | None = None  # what `concrete` held when it was handed over


class Containers(Values):
    """What a Recorder knows of containers."""

    def __init__(self, root: Any, world: Any) -> None:
        super().__init__(root, world)
        self.tracked: dict[int, Tracked] = {}  # id of what forward has in hand
        self.tuples: dict[int, tuple[Any, Callable[[], fx.Node]]] = {}  # those that are arguments, or lie in them
        self._concrete: dict[int, Any] = {}  # id of an example value that was handed over -> what forward has in hand

    def track(self, live: Any, make: Callable[[], fx.Node], text: str | None = None) -> Tracked:
        """Watch a container that `make` reaches, as it is now."""
        self.tracked[id(live)] = made = Tracked(live, make, text, state_of(live))
        return made

    lies_outside: Callable[[Any], bool]  # whether a container is a global, or in one

    def belongs_to_module(self, container: Any) -> bool:
        """Whether a container is the module's, or a global, and outlives the call."""
        raise NotImplementedError

    # What forward has changed.

    def write_down(self) -> None:
        """Have the graph change what forward has changed since."""
        for known in list(self.tracked.values()):
            self._write_down(known)

    def _write_down(self, known: Tracked) -> None:
        now = state_of(known.live)
        for function, keys, values in contents.changes(known.state, now, _same):
            known.written = True
            given = () if values is None else ([self.kept_node(v) for v in values],)
            node = self.graph.call_function(function, (known.make(), *map(self._key, keys), *given))
            node.meta["place"] = user_place() if self.runs else self.definition
        known.state = now

    def _key(self, keys: Any) -> Any:
        if not all(_is_plain_key(k) for k in keys):
            self.refuse(because(forwards.STORES_UNDER_OBJECT))
        return tuple(int(k) if isinstance(k, Length) else k for k in keys)

    def kept_node(self, x: Any) -> Any:
        """What stands in the graph for a value that is kept, or handed on: a container is one object."""
        if foreign.is_foreign(x) or foreign.is_untouchable(x):
            return self.argument(x)
        if is_mutable(x):
            return self.container_node(x)
        if isinstance(x, tuple):
            if id(x) in self.tuples:
                return self.tuples[id(x)][1]()
            items = [self.kept_node(v) for v in x]
            if isinstance(x, torch.Size):
                return self.graph.call_function(torch.Size, (items,))
            if type(x) is not tuple and not hasattr(x, "_fields"):
                self.refuse(because(forwards.PASSES_OBJECT, kind=type(x).__name__))
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        return self.argument(x)

    def container_node(self, x: Any) -> fx.Node:
        """The node of a container, which is made where it is forward's own."""
        if id(x) not in self.tracked:
            if self.belongs_to_module(x):
                self.refuse(because(forwards.STORES_OWN, kind=type(x).__name__))
            if isinstance(x, defaultdict) or isinstance(x, deque) and x.maxlen is not None:
                self.refuse(because(forwards.PASSES_OBJECT, kind=type(x).__name__))
            kind: Any = type(x)
            node = self.graph.call_function(_maker(kind), ())
            node.meta["v"] = x
            self.track(x, lambda: node).state = state_of(empty_like(x))
            self._write_down(self.tracked[id(x)])
        return self.tracked[id(x)].make()

    # Containers in the hands of others.

    def passed(self, x: Any) -> Any:
        """What stands in the graph for the arguments of a child or of an object's method; all is written down first."""
        self.write_down()
        return self._passed(x)

    def passed_by_name(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same for keyword arguments."""
        return {k: self._passed(v) for k, v in kwargs.items()}

    def _passed(self, x: Any) -> Any:
        if not foreign.is_foreign(x) and is_mutable(x) and id(x) not in self.tracked and self.belongs_to_module(x):
            return self.argument(x)
        if isinstance(x, tuple) and type(x) is tuple:
            return tuple(map(self._passed, x))
        return self.kept_node(x)

    def lent(self, x: Any) -> Any:
        """The example value of an argument; containers are such that what is written to them can be taken back."""
        return self._lent(x, set())

    def lent_by_name(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same for keyword arguments."""
        done: set[int] = set()
        return {k: self._lent(v, done) for k, v in kwargs.items()}

    def _lent(self, x: Any, done: set[int]) -> Any:
        known = self.tracked.get(id(x))
        if known is not None:
            return self._hand_over(known, done)
        if type(x) is tuple:
            return tuple(self._lent(v, done) for v in x)
        if foreign.is_foreign(x):
            for attached in list(self.tracked.values()):
                if attached.concrete is not None:
                    self._hand_over(attached, done)
        return self.concrete(x)

    def _hand_over(self, known: Tracked, done: set[int]) -> Any:
        if known.concrete is None:
            known.concrete = empty_like(known.live)
        self._concrete[id(known.concrete)] = known.live
        if id(known.live) in done:
            return known.concrete
        done.add(id(known.live))
        known.given = {}

        def given(value: Any) -> Any:
            made = self._lent(value, done)
            if not isinstance(made, SCALARS):
                known.given[id(made)] = value
            return made

        known.held = known.state
        fill(known.concrete, _mapped(known.state, lambda _, value: given(value)))
        known.handed = state_of(known.concrete)
        return known.concrete

    def take_back(self) -> None:
        """What others have changed in the containers that they were handed is read from there, at this very place."""
        for known in list(self.tracked.values()):
            before = known.handed
            if before is None:
                continue
            known.handed = None
            now = state_of(known.concrete)
            if any(contents.changes(before, now, _same)):
                self._take_back(known, before, now)

    def _take_back(self, known: Tracked, before: State, now: State) -> None:
        owner = known.make()
        fill(known.live, _mapped(now, lambda path, value: self._taken(known, before, owner, path, value)))
        known.state, known.written = state_of(known.live), True

    def _taken(self, known: Tracked, before: State, owner: fx.Node, path: Where, value: Any) -> Any:
        get, key = path
        if id(value) in known.given:
            return known.given[id(value)]
        there, live = (_at(state, path) for state in (before, known.held))
        if there is not _NOTHING and _same(there, value):
            return live
        if get is None:  # a member of a set
            self.refuse(because(forwards.STORES_UNDER_OBJECT))
        node = self.graph.call_function(get, (owner, key))
        node.meta["v"], node.meta["place"] = value, user_place()
        live = self.adopt_result(value, node, iter(()))
        if is_mutable(value) and id(live) not in self.tracked and not foreign.is_foreign(live):
            for tensor in tensors(live):
                self.node_of(tensor)  # as it is now
            self._watch(live, value, node)
        return live

    def _watch(self, live: Any, value: Any, node: fx.Node) -> None:
        """Watch a container that others have made, and those in it."""
        self.track(live, lambda: node).concrete = value
        self._concrete[id(value)] = live
        mine = state_of(live)

        def watch_part(where: Where, part: Any) -> Any:
            held, get = _at(mine, where), where[0]
            if get is not None and is_mutable(part) and not foreign.is_foreign(held) and id(held) not in self.tracked:
                self._watch(held, part, self.graph.call_function(get, (node, where[1])))
            return part

        _mapped(state_of(value), watch_part)

    def known_result(self, result: Any) -> Any:
        """What forward has in hand of a result that is one of the containers that were handed over; else None."""
        return self._concrete.get(id(result))


def _same(a: Any, b: Any) -> bool:
    return a is b or isinstance(a, SCALARS) and type(a) is type(b) and bool(a == b)


def _is_plain_key(key: Any) -> bool:
    return isinstance(key, (*SCALARS, Length)) or isinstance(key, tuple) and all(map(_is_plain_key, key))


def _at(state: State | None, where: Where) -> Any:
    """What a state has where `where` says; _NOTHING where there is nothing."""
    get, key = where
    if state is None or get is None:
        return _NOTHING
    if get is contents.read_attribute:
        return state.attributes.get(key, _NOTHING)
    if state.items is not None:
        return state.items.get(key, _NOTHING)
    return state.elements[key] if state.elements is not None and key < len(state.elements) else _NOTHING


def _mapped(state: State, function: Callable[[Where, Any], Any]) -> State:
    """A state with function((how it is read, where), value) in the place of each value."""
    read, reads = contents.read_item, contents.read_attribute
    return State(
        None if state.items is None else {k: function((read, k), v) for k, v in state.items.items()},
        None if state.elements is None else [function((read, i), v) for i, v in enumerate(state.elements)],
        None if state.members is None else frozenset(function((None, None), v) for v in state.members),
        {n: function((reads, n), v) for n, v in state.attributes.items()},
    )


@cache
def _maker(kind: Any) -> Callable[[], Any]:
    """A function that makes an empty container of a class; one for each."""

    def new_container() -> Any:
        return kind.__new__(kind)

    new_container.__name__ = new_container.__qualname__ = f"new_{kind.__name__}"
    return new_container


def holds_container(value: Any) -> bool:
    """Whether a value is, or holds in tuples, what can be changed."""
    return is_mutable(value) or isinstance(value, tuple) and any(map(holds_container, value))
