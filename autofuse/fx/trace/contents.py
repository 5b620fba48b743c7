"""The contents of a list, a dict, a set, a deque or a small object, and the calls that turn one state into another.

A rewritten forward calls the functions below that change a container. They bypass the methods of user classes, because
the trace has already seen the effects of these. This file knows Python's containers. It knows no graph and no torch.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from autofuse.fx.trace.paths import is_record

_MISSING = object()


class State(NamedTuple):
    """The contents of a container.

    Attributes:
        items: the items of a dict.
        elements: the elements of a list or a deque.
        members: the members of a set.
        attributes: the attributes of the object.
    """

    items: dict[Any, Any] | None
    elements: list[Any] | None
    members: frozenset[Any] | None
    attributes: dict[str, Any]

    def values(self) -> Iterator[Any]:
        """All values in it."""
        for part in (self.items, self.attributes):
            yield from (part or {}).values()
        yield from self.elements or ()
        yield from self.members or ()


def is_mutable(value: Any) -> bool:
    """Whether a trace copies a value part by part because it can change: a container or a record."""
    return isinstance(value, (list, dict, set, deque)) or is_record(value) or is_slotted(value)


def is_slotted(value: Any) -> bool:
    """Whether a value is a dataclass with slots."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, (type, dict, list, tuple))
    return plain and not hasattr(value, "__dict__")


def keeps_in_slots(value: Any) -> bool:
    """Whether an object has slots only."""
    return not hasattr(value, "__dict__") and bool(slots_of(type(value)))


def is_sentinel(value: Any) -> bool:
    """Whether a value only marks a missing argument: it holds nothing, and its class defines nothing."""
    kind = type(value)
    bare = kind.__mro__ == (kind, object) and not any(callable(v) for v in vars(kind).values())
    return kind is object or bare and not getattr(value, "__dict__", None) and not slots_of(kind)


def state_of(value: Any) -> State:
    """The contents of a container now."""
    return State(
        dict(_base(value).items(value)) if isinstance(value, dict) else None,
        list(_base(value).__iter__(value)) if isinstance(value, (list, deque)) else None,
        frozenset(set.__iter__(value)) if isinstance(value, set) else None,
        dict(_attributes(value)),
    )


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class, without `__dict__` and weak references."""
    declarations = (vars(c).get("__slots__", ()) for c in cls.__mro__)
    slots = [n for names in declarations for n in ((names,) if isinstance(names, str) else names)]
    return tuple(n for n in dict.fromkeys(slots) if n not in ("__dict__", "__weakref__"))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for name in slots_of(type(value)):
        content = getattr(value, name, _MISSING)
        if content is not _MISSING:
            yield name, content


def empty_like(value: Any) -> Any:
    """An empty container of the same class. No constructor of a user class runs."""
    kind: Any = type(value)
    container_copy: Any = deque(maxlen=value.maxlen) if kind is deque else kind.__new__(kind)
    if isinstance(value, defaultdict):
        container_copy.default_factory = value.default_factory
    return container_copy


def fill(container: Any, state: State) -> None:
    """Replace the contents of a container."""
    if state.items is not None:
        refill_dict(container, list(state.items), list(state.items.values()))
    if state.elements is not None:
        refill_list(container, state.elements)
    if state.members is not None:
        set.clear(container)
        set.update(container, state.members)
    remove_attributes(container, [n for n, _ in _attributes(container) if n not in state.attributes])
    store_attributes(container, list(state.attributes), list(state.attributes.values()))


def all_states(value: Any) -> list[tuple[Any, State]]:
    """Everything in a value that can change, with its contents."""
    states, todo = dict[int, tuple[Any, State]](), [value]
    while todo:
        v = todo.pop()
        if isinstance(v, tuple):
            todo += v
        elif id(v) not in states and (is_mutable(v) or hasattr(v, "__dict__") and not isinstance(v, (type, Callable))):  # type: ignore[arg-type]
            states[id(v)] = v, state_of(v)
            todo += states[id(v)][1].values()
    return list(states.values())


class Replay(NamedTuple):
    """A call that changes a container: `function(container, *keys, *values)`.

    Attributes:
        function: one of `STORES`.
        keys: constants.
        values: values that become nodes of the graph; None if the call takes none.
    """

    function: Callable[..., None]
    keys: tuple[Any, ...]
    values: tuple[Any, ...] | None = None


Same = Callable[[Any, Any], bool]


def changes(before: State, after: State, same: Same) -> Iterator[Replay]:
    """The calls that turn a container with the contents `before` into one with the contents `after`.

    The order of dicts and lists is kept. `same` compares two values.
    """
    if before.items is not None and after.items is not None:
        yield from _item_changes(before.items, after.items, same)
    if before.elements is not None and after.elements is not None:
        yield from _element_changes(before.elements, after.elements, same)
    if before.members is not None and after.members is not None and before.members != after.members:
        yield Replay(change_members, (tuple(before.members - after.members),), tuple(after.members - before.members))
    removed = tuple(n for n in before.attributes if n not in after.attributes)
    if removed:
        yield Replay(remove_attributes, (removed,))
    new = _new_values(before.attributes, after.attributes, same)
    if new:
        yield Replay(store_attributes, (tuple(new),), tuple(new.values()))


def _item_changes(before: dict[Any, Any], after: dict[Any, Any], same: Same) -> Iterator[Replay]:
    removed = tuple(k for k in before if k not in after)
    new = _new_values(before, after, same)
    order = [*(k for k in before if k in after), *(k for k in new if k not in before)]
    if order != list(after):
        # A store keeps the position of a known key and appends a new one. Any other order needs a refill.
        yield Replay(refill_dict, (tuple(after),), tuple(after.values()))
        return
    if removed:
        yield Replay(remove_items, (removed,))
    if new:
        yield Replay(store_items, (tuple(new),), tuple(new.values()))


def _new_values(before: dict[Any, Any], after: dict[Any, Any], same: Same) -> dict[Any, Any]:
    return {k: v for k, v in after.items() if k not in before or not same(before[k], v)}


def _element_changes(before: list[Any], after: list[Any], same: Same) -> Iterator[Replay]:
    # The common case is a list that grows.
    if len(before) <= len(after) and all(map(same, before, after)):
        if len(after) > len(before):
            yield Replay(extend, (), tuple(after[len(before) :]))
        return
    yield Replay(refill_list, (), tuple(after))


# The functions that a rewritten forward calls.


def _base(container: Any) -> Any:
    # The methods of this class are called, so that no override in a user's subclass runs.
    return next(kind for kind in (OrderedDict, dict, list, deque, set) if isinstance(container, kind))


def store_items(container: Any, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
    """Set container[key] = value for each pair, in order."""
    store = _base(container).__setitem__
    for key, value in zip(keys, values, strict=True):
        store(container, key, value)


def remove_items(container: Any, keys: Sequence[Hashable]) -> None:
    """Delete container[key] for each key."""
    for key in keys:
        _base(container).__delitem__(container, key)


def refill_dict(container: Any, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
    """Replace the items of a dict, in this order."""
    _base(container).clear(container)
    store_items(container, keys, values)


def extend(container: Any, values: Sequence[Any]) -> None:
    """Append to a list or a deque."""
    _base(container).extend(container, values)


def refill_list(container: Any, values: Sequence[Any]) -> None:
    """Replace the elements of a list or a deque."""
    _base(container).clear(container)
    _base(container).extend(container, values)


def change_members(container: Any, removed: Sequence[Hashable], added: Sequence[Any]) -> None:
    """Remove members from a set and add others."""
    set.difference_update(container, removed)
    set.update(container, added)


def store_attributes(holder: Any, names: Sequence[str], values: Sequence[Any]) -> None:
    """Set holder.name = value for each pair. The `__setattr__` of its class does not run."""
    slots = slots_of(type(holder))
    for name, value in zip(names, values, strict=True):
        if name in slots:
            object.__setattr__(holder, name, value)
        else:
            vars(holder)[name] = value


def remove_attributes(holder: Any, names: Sequence[str]) -> None:
    """Delete holder.name for each name."""
    for name in names:
        object.__delattr__(holder, name)


def read_item(container: Any, key: Any) -> Any:
    """The value under a key at this point of the graph, where an earlier call may have changed the container."""
    return _base(container).__getitem__(container, key)


def read_attribute(holder: Any, name: str) -> Any:
    """The attribute of an object at this point of the graph, where an earlier call may have changed the object."""
    return getattr(holder, name)


STORES = frozenset({store_items, remove_items, refill_dict, extend, refill_list, change_members, store_attributes,
                    remove_attributes})  # fmt: skip
READS = frozenset({read_item, read_attribute})
