"""The containers of a trace, and what forward writes to them.

Forward changes stand-ins, which are lists and dicts like the caller's. The graph records the changes before other code
can see them: before a child or an object gets a container, and at the end. A container that forward created itself is
recorded once, when other code gets it, so that it stays one object.
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

Location = tuple[Callable[..., Any] | None, Any]  # the function that reads a value from its container, and the key
_MISSING = object()


@dataclass
class Tracked:
    """A container of the trace.

    Attributes:
        live: the stand-in that forward uses.
        make: creates a node of the container.
        text: the guard text, if it came with the arguments.
        state: the contents that the graph has recorded so far.
        written: whether forward or other code has changed it.
        concrete: a copy with example values, for code that runs on these.
        live_values: id of a value in `concrete` -> the value in `live`.
        live_state: the contents of `live` when `concrete` was passed to other code.
        lent_state: the contents of `concrete` at that time.
    """

    live: Any
    make: Callable[[], fx.Node]
    text: str | None
    state: State
    written: bool = False
    concrete: Any = None
    live_values: dict[int, Any] = field(default_factory=dict)
    live_state: State | None = None
    lent_state: State | None = None


class Containers(Values):
    """The part of a Recorder that handles containers."""

    def __init__(self, root: Any, world: Any) -> None:
        super().__init__(root, world)
        self.tracked: dict[int, Tracked] = {}  # by the id of the stand-in that forward uses
        self.tuples: dict[int, tuple[Any, Callable[[], fx.Node]]] = {}  # tuples that are arguments or parts of them
        self._concrete: dict[int, Any] = {}  # id of an example container -> forward's stand-in

    def track(self, live: Any, make: Callable[[], fx.Node], text: str | None = None) -> Tracked:
        """Track the changes of a container from now on.

        Args:
            live: the stand-in that forward uses.
            make: creates a node of the container.
            text: the guard text, if it came with the arguments.
        """
        self.tracked[id(live)] = tracked = Tracked(live, make, text, state_of(live))
        return tracked

    lies_outside: Callable[[Any], bool]  # whether a container is a global or a part of one

    def belongs_to_module(self, container: Any) -> bool:
        """Whether a container belongs to the module or to a global, and so outlives the call."""
        raise NotImplementedError

    # Changes by forward.

    def record_changes(self) -> None:
        """Record in the graph what forward has changed since the last time."""
        for tracked in list(self.tracked.values()):
            self._record_changes(tracked)

    def _record_changes(self, tracked: Tracked) -> None:
        now = state_of(tracked.live)
        for function, keys, values in contents.changes(tracked.state, now, _is_same):
            tracked.written = True
            value_nodes = () if values is None else ([self.stored_node(v) for v in values],)
            node = self.graph.call_function(function, (tracked.make(), *map(self._key, keys), *value_nodes))
            node.meta["place"] = user_place() if self.runs else self.definition
        tracked.state = now

    def _key(self, keys: Any) -> Any:
        if not all(_is_plain_key(k) for k in keys):
            self.refuse(because(forwards.STORES_UNDER_OBJECT))
        return tuple(int(k) if isinstance(k, Length) else k for k in keys)

    def stored_node(self, x: Any) -> Any:
        """The node, or the constant, for a value that is stored or passed on. A container is one object."""
        if foreign.is_foreign(x) or foreign.is_unusable(x):
            return self.argument(x)
        if is_mutable(x):
            return self.container_node(x)
        if isinstance(x, tuple):
            if id(x) in self.tuples:
                return self.tuples[id(x)][1]()
            items = [self.stored_node(v) for v in x]
            if isinstance(x, torch.Size):
                node = self.graph.call_function(torch.Size, (items,))
                node.meta["v"] = x
                return node
            if type(x) is not tuple and not hasattr(x, "_fields"):
                self.refuse(because(forwards.PASSES_OBJECT, kind=type(x).__name__))
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        return self.argument(x)

    def container_node(self, x: Any) -> fx.Node:
        """The node of a container. The graph creates the container if forward created it."""
        if id(x) not in self.tracked:
            if self.belongs_to_module(x):
                self.refuse(because(forwards.STORES_OWN, kind=type(x).__name__))
            if isinstance(x, defaultdict) or isinstance(x, deque) and x.maxlen is not None:
                self.refuse(because(forwards.PASSES_OBJECT, kind=type(x).__name__))
            kind: Any = type(x)
            node = self.graph.call_function(_maker(kind), ())
            node.meta["v"] = x
            self.track(x, lambda: node).state = state_of(empty_like(x))
            self._record_changes(self.tracked[id(x)])
        return self.tracked[id(x)].make()

    # Containers that other code gets.

    def argument_nodes(self, x: Any) -> Any:
        """The nodes of the arguments of a child or of an object's method. All changes are recorded first."""
        self.record_changes()
        return self._argument_node(x)

    def keyword_nodes(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same for keyword arguments."""
        return {k: self._argument_node(v) for k, v in kwargs.items()}

    def _argument_node(self, x: Any) -> Any:
        if not foreign.is_foreign(x) and is_mutable(x) and id(x) not in self.tracked and self.belongs_to_module(x):
            return self.argument(x)
        if isinstance(x, tuple) and type(x) is tuple:
            return tuple(map(self._argument_node, x))
        return self.stored_node(x)

    def example_value(self, x: Any) -> Any:
        """The example value of an argument. A container is copied, so that changes to it can be found."""
        return self._example(x, set())

    def example_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same for keyword arguments."""
        done: set[int] = set()
        return {k: self._example(v, done) for k, v in kwargs.items()}

    def _example(self, x: Any, done: set[int]) -> Any:
        tracked = self.tracked.get(id(x))
        if tracked is not None:
            return self._copy_for_call(tracked, done)
        if type(x) is tuple:
            return tuple(self._example(v, done) for v in x)
        if foreign.is_foreign(x):
            for other in list(self.tracked.values()):
                if other.concrete is not None:
                    self._copy_for_call(other, done)
        return self.concrete(x)

    def _copy_for_call(self, tracked: Tracked, done: set[int]) -> Any:
        if tracked.concrete is None:
            tracked.concrete = empty_like(tracked.live)
        self._concrete[id(tracked.concrete)] = tracked.live
        if id(tracked.live) in done:
            return tracked.concrete
        done.add(id(tracked.live))
        tracked.live_values = {}

        def lend(value: Any) -> Any:
            example = self._example(value, done)
            if not isinstance(example, SCALARS):
                tracked.live_values[id(example)] = value
            return example

        tracked.live_state = tracked.state
        fill(tracked.concrete, _map_state(tracked.state, lambda _, value: lend(value)))
        tracked.lent_state = state_of(tracked.concrete)
        return tracked.concrete

    def record_changes_of_others(self) -> None:
        """Record what other code changed in the containers that it got. The graph reads the new values here."""
        for tracked in list(self.tracked.values()):
            before = tracked.lent_state
            if before is None:
                continue
            tracked.lent_state = None
            now = state_of(tracked.concrete)
            if any(contents.changes(before, now, _is_same)):
                self._apply_changes(tracked, before, now)

    def _apply_changes(self, tracked: Tracked, before: State, now: State) -> None:
        owner = tracked.make()
        fill(tracked.live, _map_state(now, lambda path, value: self._live_value(tracked, before, owner, path, value)))
        tracked.state, tracked.written = state_of(tracked.live), True

    def _live_value(self, tracked: Tracked, before: State, owner: fx.Node, path: Location, value: Any) -> Any:
        get, key = path
        if id(value) in tracked.live_values:
            return tracked.live_values[id(value)]
        old, live = (_value_at(state, path) for state in (before, tracked.live_state))
        if old is not _MISSING and _is_same(old, value):
            return live
        if get is None:  # a member of a set
            self.refuse(because(forwards.STORES_UNDER_OBJECT))
        node = self.graph.call_function(get, (owner, key))
        node.meta["v"], node.meta["place"] = value, user_place()
        live = self.adopt_result(value, node, iter(()))
        if is_mutable(value) and id(live) not in self.tracked and not foreign.is_foreign(live):
            for tensor in tensors(live):
                self.node_of(tensor)  # before later code writes to the container
            self._track_created(live, value, node)
        return live

    def _track_created(self, live: Any, value: Any, node: fx.Node) -> None:
        """Track a container that other code created, and the containers in it."""
        self.track(live, lambda: node).concrete = value
        self._concrete[id(value)] = live
        live_state = state_of(live)

        def track_part(location: Location, part: Any) -> Any:
            inner, get = _value_at(live_state, location), location[0]
            if get is not None and is_mutable(part) and not foreign.is_foreign(inner) and id(inner) not in self.tracked:
                self._track_created(inner, part, self.graph.call_function(get, (node, location[1])))
            return part

        _map_state(state_of(value), track_part)

    def known_result(self, result: Any) -> Any:
        """Forward's stand-in for a result that is a container which was passed as an argument; None for any other."""
        return self._concrete.get(id(result))


def _is_same(a: Any, b: Any) -> bool:
    return a is b or isinstance(a, SCALARS) and type(a) is type(b) and bool(a == b)


def _is_plain_key(key: Any) -> bool:
    return isinstance(key, (*SCALARS, Length)) or isinstance(key, tuple) and all(map(_is_plain_key, key))


def _value_at(state: State | None, location: Location) -> Any:
    """The value of a state at a location; _MISSING if there is none."""
    get, key = location
    if state is None or get is None:
        return _MISSING
    if get is contents.read_attribute:
        return state.attributes.get(key, _MISSING)
    if state.items is not None:
        return state.items.get(key, _MISSING)
    return state.elements[key] if state.elements is not None and key < len(state.elements) else _MISSING


def _map_state(state: State, function: Callable[[Location, Any], Any]) -> State:
    """A state with function(location, value) in place of each value."""
    read, reads = contents.read_item, contents.read_attribute
    return State(
        None if state.items is None else {k: function((read, k), v) for k, v in state.items.items()},
        None if state.elements is None else [function((read, i), v) for i, v in enumerate(state.elements)],
        None if state.members is None else frozenset(function((None, None), v) for v in state.members),
        {n: function((reads, n), v) for n, v in state.attributes.items()},
    )


@cache
def _maker(kind: Any) -> Callable[[], Any]:
    """A function that creates an empty container of a class. Each class has one such function."""

    def new_container() -> Any:
        return kind.__new__(kind)

    new_container.__name__ = new_container.__qualname__ = f"new_{kind.__name__}"
    return new_container


def holds_container(value: Any) -> bool:
    """Whether a value is a mutable container, or a tuple that contains one at any depth."""
    return is_mutable(value) or isinstance(value, tuple) and any(map(holds_container, value))
