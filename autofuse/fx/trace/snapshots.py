"""Records the content of values, to find later changes and to restore them.

Snapshots cover containers, attributes of objects and classes, arrays, tensors, random generators, and everything that
these reach by names of attributes that the code in question uses. This file knows Python's values. It does not use
graphs or code.
"""

from __future__ import annotations

import array
import collections
import contextvars
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import cached_tensors, effects
from autofuse.fx.trace.reachable import (
    CACHE,
    EVERYTHING,
    MAX_LENGTH,
    Everything,
    attributes_of_tensor,
    has_attributes,
    is_foreign,
    referents,
    value_of_variable,
)
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.twin import is_twin
from autofuse.torch_private import FakeTensor, set_version_counter, unset_fake_temporarily

_MAX_VALUES = 20_000
_MAX_TENSOR_ELEMENTS, _MAX_ARRAY_BYTES = 1 << 16, 1 << 20
_NOTHING = object()
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, range, type(...))


@dataclass
class _Record:
    """One recorded value.

    Attributes:
        value: The value.
        name: Its name in messages.
        before: What it held.
        now: Returns what it holds now.
        put: Restores what it held.
    """

    value: Any
    name: str
    before: Any
    now: Callable[[Any], Any]
    put: Callable[[Any, Any], None]


@dataclass(frozen=True)
class OutsideChange:
    """A value that was changed.

    Attributes:
        name: Its name in messages.
        added: The values that were added to it or that replaced others.
        may_be_cache: Whether nothing was removed, and at most one value was replaced.
        owner: The value.
    """

    name: str
    added: tuple[Any, ...]
    may_be_cache: bool
    owner: Any


class Snapshot:
    """The content of some values at the time when they were noted."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._seen: dict[int, tuple[Any, set[str]]] = {}
        self._names_of_class: dict[type, set[str]] = {}  # the attributes that functions read of any instance
        self._caches: list[tuple[Any, bool]] = []  # caches, and whether each was empty
        self.left: list[tuple[str, str]] = []  # names of caches that are not emptied, and why
        self._large: list[tuple[Tensor, str]] = []  # copied only if code may write to them
        self._count = 0

    def note(self, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Records what `value` holds, and what it reaches by the attributes in `names`. Messages call it `name`."""
        todo = [(value, name)]
        while todo and self._count < _MAX_VALUES:
            value, name = todo.pop()
            wanted = self._names_for(type(value), names)
            if isinstance(value, _ATOMS) or is_twin(value) or not self._has_new_names(value, wanted):
                continue
            self._count += 1
            if effects.prints_unseen(value):
                self.left.append((name, effects.kind_of_state(value)))
            self._record(value, name)
            if isinstance(value, types.FunctionType) and not is_foreign(value):
                for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    self.note_cell(cell, variable)
            todo += [(inside, f"{name}{part}") for part, inside in referents(value, wanted)]

    def note_instances(self, cls: type, names: Collection[str]) -> None:
        """Records what all instances of a class reach by the attributes in `names`, those noted later included."""
        known = self._names_of_class.setdefault(cls, set())
        if isinstance(names, Everything) or known.issuperset(names):
            return
        known.update(names)
        for value in [v for v, _ in self._seen.values() if type(v) is cls]:
            self.note(value, cls.__name__, names)

    def _names_for(self, cls: type, names: Collection[str]) -> Collection[str]:
        more = self._names_of_class.get(cls)
        return {*names, *more} if more and not isinstance(names, Everything) else names

    def note_name(self, namespace: dict[str, Any], name: str) -> None:
        """Records the value of a name in a namespace."""
        key = hash((id(namespace), name))
        if key not in self._records:
            before = namespace.get(name, _NOTHING)
            self._records[key] = _Record(
                namespace,
                name,
                [before],
                lambda n: [n.get(name, _NOTHING)],
                lambda n, record: _put_item(n, name, record[0]),
            )

    def note_attribute(self, module: types.ModuleType, name: str) -> None:
        """Records an attribute of a Python module, which the module may compute: `torch.backends.cudnn.benchmark`."""
        key = hash((id(module), name, "attribute"))
        if key not in self._records:
            self._records[key] = _Record(
                module,
                f"{module.__name__}.{name}",
                [getattr(module, name, _NOTHING)],
                lambda m: [getattr(m, name, _NOTHING)],
                lambda m, record: _put_module_attribute(m, name, record[0]),
            )

    def note_contents(self, container: Any, name: str) -> None:
        """Records the elements of a container, but not what they hold: `sys.modules` leads to everything."""
        if id(container) not in self._seen:
            self._record(container, name)

    def note_namespace(self, module: types.ModuleType) -> None:
        """Records everything that a Python module holds. Submodules do not count: imports add them."""
        key = hash((id(module), "namespace"))
        if key not in self._records:
            self._records[key] = _Record(vars(module), module.__name__, _names(vars(module)), _names, _put_names)

    def note_cell(self, cell: types.CellType, name: str) -> None:
        """Records the value of a variable that functions close over."""
        if id(cell) not in self._records:
            self._records[id(cell)] = _Record(cell, name, _cell_content(cell), _cell_content, _put_cell_content)

    def keep_large(self) -> None:
        """Records the large tensors too, because code that may write to them is about to run."""
        for x, name in self._large:
            if type(x) is not FakeTensor and not x.is_meta and id(x) not in self._records:
                self._records[id(x)] = _Record(x, name, _tensor(x), _tensor, _put_tensor)
        self._large.clear()

    def holds(self, value: Any) -> bool:
        """Returns whether a value was noted."""
        return id(value) in self._seen

    def changes(self) -> Iterator[OutsideChange]:
        """Yields the values that hold something else now."""
        for record in list(self._records.values()):
            change = _change(record)
            if change is not None:
                yield change

    def restore(self) -> None:
        """Restores what was changed."""
        for record in list(self._records.values()):
            if _change(record) is not None:
                record.put(record.value, record.before)
        self._empty_caches()

    def _empty_caches(self) -> None:
        """Empties the functools caches that hold tensors, and those that were empty before."""
        for cache, was_empty in self._caches:
            if was_empty or next(cached_tensors.tensors_in(cache), None) is not None:
                _clear(cache)

    def _has_new_names(self, value: Any, names: Collection[str]) -> bool:
        known = self._seen.get(id(value))
        if known is None:
            self._seen[id(value)] = value, set(names)
            return True
        if isinstance(names, Everything) and "*" not in known[1]:
            known[1].add("*")
            return True
        new = set(names) - known[1]
        known[1].update(new)
        return bool(new) and "*" not in known[1]

    def _record(self, value: Any, name: str) -> None:
        if id(value) in self._records or ~id(value) in self._records:
            return
        if isinstance(value, CACHE):
            if not cached_tensors.is_unwritten(value):
                self.left.append((name, "cache whose tensors were written to"))
            elif cached_tensors.is_hit_count_read(value):
                self.left.append((name, "cache whose counts the program reads"))
            elif cached_tensors.is_held_elsewhere(value):
                self.left.append((name, "cache whose tensors are held elsewhere"))
            else:
                if next(cached_tensors.tensors_in(value), None) is not None:
                    _clear(value)
                self._caches.append((value, not value.cache_info().currsize))
            return
        if isinstance(value, Tensor) and value.numel() > _MAX_TENSOR_ELEMENTS:
            self._large.append((value, name))
        for now, put in _accessors(value):
            key = ~id(value) if now in (_attributes, _marks_of_tensor) else id(value)
            self._records[key] = _Record(value, name, now(value), now, put)


def _clear(cache: Any) -> None:
    cached_tensors.record_versions(cache)
    if cache.cache_info().currsize:
        cache.cache_clear()


def _accessors(value: Any) -> Iterator[tuple[Callable[[Any], Any], Callable[[Any, Any], None]]]:
    """Yields pairs of functions: one returns the content of a value, the other restores it."""
    if isinstance(value, Tensor):
        if type(value) is not FakeTensor and value.numel() <= _MAX_TENSOR_ELEMENTS and not value.is_meta:
            yield _tensor, _put_tensor
        if type(value) is not FakeTensor:
            yield _marks_of_tensor, _put_marks
        return
    if effects.is_array(value):
        if value.nbytes <= _MAX_ARRAY_BYTES:
            yield _array, _put_array
        return
    if effects.random_state(value) is not None:
        yield _random, _put_random
        return
    if isinstance(value, contextvars.ContextVar):
        yield _variable, lambda v, before: v.set(before) if before is not _NOTHING else None
        return
    if isinstance(value, dict) and len(value) <= MAX_LENGTH:
        yield _items, _put_items
    elif isinstance(value, (list, collections.deque, bytearray)) and len(value) <= MAX_LENGTH:
        yield list, _put_list
    elif isinstance(value, array.array) and len(value) <= MAX_LENGTH:
        yield list, _put_numbers
    elif isinstance(value, set) and len(value) <= MAX_LENGTH:
        yield set, _put_set
    if has_attributes(value):
        yield _attributes, _put_attributes


# Reading and restoring values.


def _change(record: _Record) -> OutsideChange | None:
    now = record.now(record.value)
    if _same(record.before, now):
        return None
    if isinstance(now, dict) and isinstance(record.before, dict):
        added = tuple(v for k, v in now.items() if k not in record.before or not _is_same_item(record.before[k], v))
        only = all(k in now and _is_same_item(now[k], v) for k, v in record.before.items())
        return OutsideChange(record.name, added, only, record.value)
    if isinstance(now, list) and isinstance(record.before, list) and not effects.is_array(record.value):
        added = tuple(v for v in now if id(v) not in set(map(id, record.before)))
        extended = len(now) > len(record.before) and all(map(_is_same_item, record.before, now))
        return OutsideChange(
            record.name, added, extended or isinstance(record.value, dict), record.value
        )  # a dict here is the namespace of a name
    return OutsideChange(record.name, (), False, record.value)


def _same(before: Any, now: Any) -> bool:
    if isinstance(now, dict) and isinstance(before, dict):
        same = len(before) == len(now) and all(map(_is_same_key, before, now))
        return same and all(map(_is_same_item, before.values(), now.values()))
    if isinstance(now, list):
        return len(before) == len(now) and all(map(_is_same_item, before, now))
    if isinstance(now, set):
        return len(before) == len(now) and {*map(id, before)} == {*map(id, now)}
    if isinstance(now, tuple) and now and isinstance(now[-1], Tensor):
        return bool(before[0] == now[0])  # what `_tensor` returns
    if isinstance(now, Tensor):
        return torch.equal(before, now)
    return bool(before is now or before == now)


def _is_same_key(before: Any, now: Any) -> bool:
    """Returns whether two keys are the same. Weak references are compared by identity.

    `==` on weak references would call the `__eq__` of the objects.
    """
    return before is now or not isinstance(now, weakref.ref) and bool(before == now)


def _is_same_item(before: Any, now: Any) -> bool:
    return before is now or type(before) is type(now) and isinstance(now, _ATOMS) and before == now


def _items(value: Any) -> dict[Any, Any]:
    return dict(_table(value).items(value))


def _table(value: Any) -> Any:
    """Returns the class whose methods read and write a dict directly, and not through overridden methods."""
    return collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict


def _put_items(value: Any, before: dict[Any, Any]) -> None:
    table = _table(value)
    for key in [k for k in table.keys(value) if k not in before]:
        table.__delitem__(value, key)
    if [*table.keys(value)] != [*before]:
        table.clear(value)
    for key, held in before.items():
        table.__setitem__(value, key, held)


def _names(namespace: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in namespace.items() if not isinstance(v, types.ModuleType)}


def _put_names(namespace: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [n for n in _names(namespace) if n not in before]:
        del namespace[name]
    namespace.update(before)


def _put_list(value: Any, before: list[Any]) -> None:
    value.clear()
    value.extend(before)


def _put_numbers(value: Any, before: list[Any]) -> None:
    del value[:]
    value.extend(before)


def _put_set(value: Any, before: set[Any]) -> None:
    value.clear()
    value.update(before)


def _attributes(value: Any) -> dict[str, Any]:
    inside = dict(getattr(value, "__dict__", {}))
    if isinstance(value, type):  # Python sets attributes of classes on its own: `__slotnames__` when one is copied
        return {name: held for name, held in inside.items() if name[:2] != "__"}
    if isinstance(value, nn.Module):
        inside |= {f"{t}.{n}": v for t in ("_parameters", "_buffers", "_modules") for n, v in inside.get(t, {}).items()}
    return inside | {n: getattr(value, n) for n in slots(value) if hasattr(value, n)}


def _put_attributes(value: Any, before: dict[str, Any]) -> None:
    now = _attributes(value)
    for name in (n for n in now if n not in before):
        _put_attribute(value, name, _NOTHING)
    for name, held in before.items():
        if name not in now or not _is_same_item(held, now[name]):
            _put_attribute(value, name, held)


def _put_attribute(value: Any, name: str, held: Any) -> None:
    if isinstance(value, type):
        delattr(value, name) if held is _NOTHING else setattr(value, name, held)
        return
    table, _, inner = name.partition(".")
    inside = getattr(value, "__dict__", {})
    if inner:
        _put_item(inside[table], inner, held)
    elif name in slots(value):
        object.__delattr__(value, name) if held is _NOTHING else object.__setattr__(value, name, held)
    else:
        _put_item(inside, name, held)


def _put_module_attribute(module: types.ModuleType, name: str, held: Any) -> None:
    if held is _NOTHING:
        delattr(module, name)
    else:
        setattr(module, name, held)


def _cell_content(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return [_NOTHING]


def _put_cell_content(cell: types.CellType, before: list[Any]) -> None:
    if before[0] is _NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = before[0]


def _put_item(held: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _NOTHING:
        held.pop(key, None)
    else:
        held[key] = value


def _tensor(x: Tensor) -> Any:
    with unset_fake_temporarily():  # a fake copy would hold no numbers to restore
        return _facts_of_tensor(x), x.detach(), x.detach().clone()


def _facts_of_tensor(x: Tensor) -> tuple[Any, ...]:
    """Returns what differs after a write: the version, and where the tensor lies in which memory."""
    version = x._version if not x.is_inference() else 0
    return version, x.untyped_storage()._cdata, x.shape, x.stride(), x.storage_offset()


def _put_tensor(x: Tensor, before: Any) -> None:
    facts, alias, numbers = before
    with unset_fake_temporarily(), torch.no_grad():
        if _facts_of_tensor(x)[1:] != facts[1:]:
            x.data = alias.resize_(facts[2]) if alias.shape != facts[2] else alias
        x.copy_(numbers)
    if not x.is_inference():
        set_version_counter((x,), (facts[0],))  # so that the write and the restore are invisible


def _marks_of_tensor(x: Tensor) -> dict[str, Any]:
    """Returns the attributes that a program sets on a tensor, its gradient, and whether it requires one."""
    gradient = {"grad": x.grad, "requires_grad": x.requires_grad} if x.is_leaf else {}
    return attributes_of_tensor(x) | gradient


def _put_marks(x: Tensor, before: dict[str, Any]) -> None:
    for name in [n for n in _marks_of_tensor(x) if n not in before]:
        delattr(x, name)
    for name, held in before.items():
        if getattr(x, name) is not held:
            setattr(x, name, held)


def _array(x: Any) -> Any:
    return x.copy().tolist() if x.dtype != object else list(x.flat)


def _put_array(x: Any, before: Any) -> None:
    x[...] = before if x.dtype != object else type(x)(x.shape, dtype=object)


def _variable(x: contextvars.ContextVar[Any]) -> Any:
    return value_of_variable(x, _NOTHING)


@dataclass(frozen=True, eq=False)
class _RandomState:
    state: Any
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RandomState) and self.text == other.text


def _random(x: Any) -> _RandomState:
    state = x.get_state() if isinstance(x, torch.Generator) else _state(x)
    text = str(state.tolist()) if isinstance(state, Tensor) else repr(effects.random_state(x))
    return _RandomState(state, text)


def _state(x: Any) -> Any:
    if hasattr(x, "getstate"):
        return x.getstate()
    return x.bit_generator.state if hasattr(x, "bit_generator") else x.get_state(legacy=False)


def _put_random(x: Any, before: _RandomState) -> None:
    if isinstance(x, torch.Generator):
        x.set_state(before.state)
    elif hasattr(x, "setstate"):
        x.setstate(before.state)
    elif hasattr(x, "bit_generator"):
        x.bit_generator.state = before.state
    else:
        x.set_state(before.state)
