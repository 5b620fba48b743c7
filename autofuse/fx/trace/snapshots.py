"""What values hold now, to tell later what was changed in them, and to put it back.

Containers, attributes of objects and classes, arrays, tensors and generators of random numbers, and what they reach by
the names of attributes that the code in question uses. Knows Python's values; knows no graph and no code.
"""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import cached_tensors, effects
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.twin import is_twin
from autofuse.torch_private import FakeTensor, set_version_counter

_MOST, _LARGEST = 20_000, 10_000
_LARGEST_TENSOR, _LARGEST_ARRAY = 1 << 16, 1 << 20  # elements, bytes
_NOTHING = object()
CACHE = functools._lru_cache_wrapper
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, range, type(...))


class Everything(frozenset[str]):
    """All names: what is read cannot be told."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = Everything()


@dataclass
class _Kept:
    """A value, what it held, and how that is looked up and put back."""

    value: Any
    name: str
    before: Any
    now: Callable[[Any], Any]
    put: Callable[[Any, Any], None]


@dataclass(frozen=True)
class OutsideChange:
    """Something that was changed: what it is called, and what was added to it or put in another's place."""

    name: str
    added: tuple[Any, ...]
    may_be_cache: bool  # whether nothing was taken out, and what was put in another's place is a single thing
    owner: Any


class Snapshot:
    """What some values held when they were noted."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._seen: dict[int, tuple[Any, set[str]]] = {}
        self._caches: list[Any] = []
        self.left: list[tuple[str, str]] = []  # caches that are left alone, what to call them and why
        self._large: list[tuple[Tensor, str]] = []  # which are copied where code may write to them
        self._count = 0

    def note(self, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Keep what `value` holds, and what it reaches by attributes of these names. `name`: what to call it."""
        todo = [(value, name)]
        while todo and self._count < _MOST:
            value, name = todo.pop()
            if isinstance(value, _ATOMS) or is_twin(value) or not self._is_news(value, names):
                continue
            self._count += 1
            self._keep(value, name)
            todo += [(inside, f"{name}{part}") for part, inside in _reached(value, names)]

    def note_name(self, namespace: dict[str, Any], name: str) -> None:
        """Keep what a namespace has under a name."""
        key = hash((id(namespace), name))
        if key not in self._kept:
            before = namespace.get(name, _NOTHING)
            self._kept[key] = _Kept(namespace, name, [before], lambda n: [n.get(name, _NOTHING)],
                                    lambda n, kept: _put_item(n, name, kept[0]))  # fmt: skip

    def note_attribute(self, module: types.ModuleType, name: str) -> None:
        """Keep what a module of Python has under a name, which it may compute: `torch.backends.cudnn.benchmark`."""
        key = hash((id(module), name, "attribute"))
        if key not in self._kept:
            self._kept[key] = _Kept(module, f"{module.__name__}.{name}", [getattr(module, name, _NOTHING)],
                                    lambda m: [getattr(m, name, _NOTHING)],
                                    lambda m, kept: _put_of_module(m, name, kept[0]))  # fmt: skip

    def note_cell(self, cell: types.CellType, name: str) -> None:
        """Keep what a variable that functions close over is bound to."""
        if id(cell) not in self._kept:
            self._kept[id(cell)] = _Kept(cell, name, _bound(cell), _bound, _bind)

    def keep_large(self) -> None:
        """Keep the large tensors in reach, too: code that may write to them is about to run."""
        for x, name in self._large:
            if type(x) is not FakeTensor and not x.is_meta and id(x) not in self._kept:
                self._kept[id(x)] = _Kept(x, name, _tensor(x), _tensor, _put_tensor)
        self._large.clear()

    def holds(self, value: Any) -> bool:
        """Whether a value was noted."""
        return id(value) in self._seen

    def changes(self) -> Iterator[OutsideChange]:
        """What holds something else now."""
        for kept in list(self._kept.values()):
            change = _change(kept)
            if change is not None:
                yield change

    def restore(self) -> None:
        """Put back what was changed."""
        for kept in list(self._kept.values()):
            if _change(kept) is not None:
                kept.put(kept.value, kept.before)
        self.forget_cached()

    def forget_cached(self) -> None:
        """Empty the caches of functools that hold tensors."""
        for cache in self._caches:
            if next(cached_tensors.tensors_in(cache), None) is not None:
                cached_tensors.record_versions(cache)
                cache.cache_clear()

    def _is_news(self, value: Any, names: Collection[str]) -> bool:
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

    def _keep(self, value: Any, name: str) -> None:
        if id(value) in self._kept:
            return
        if isinstance(value, CACHE):
            if not cached_tensors.is_unwritten(value):
                self.left.append((name, "cache whose tensors were written to"))
            elif cached_tensors.is_hit_count_read(value):
                self.left.append((name, "cache whose counts the program reads"))
            elif cached_tensors.is_held_elsewhere(value):
                self.left.append((name, "cache whose tensors are held elsewhere"))
            else:
                self._caches.append(value)
                self.forget_cached()
            return
        if isinstance(value, Tensor) and value.numel() > _LARGEST_TENSOR:
            self._large.append((value, name))
        for now, put in _ways(value):
            key = id(value) if now is not _attributes else ~id(value)
            self._kept[key] = _Kept(value, name, now(value), now, put)


def _ways(value: Any) -> Iterator[tuple[Callable[[Any], Any], Callable[[Any, Any], None]]]:
    """How what a value holds is looked up, and put back."""
    if isinstance(value, Tensor):
        if type(value) is not FakeTensor and value.numel() <= _LARGEST_TENSOR and not value.is_meta:
            yield _tensor, _put_tensor
        return
    if effects.is_array(value):
        if value.nbytes <= _LARGEST_ARRAY:
            yield _array, _put_array
        return
    if effects.random_state(value) is not None:
        yield _random, _put_random
        return
    if isinstance(value, contextvars.ContextVar):
        yield _variable, lambda v, before: v.set(before) if before is not _NOTHING else None
        return
    if isinstance(value, dict) and len(value) <= _LARGEST:
        yield _items, _put_items
    elif isinstance(value, (list, collections.deque, bytearray)) and len(value) <= _LARGEST:
        yield list, _put_list
    elif isinstance(value, array.array) and len(value) <= _LARGEST:
        yield list, _put_numbers
    elif isinstance(value, set) and len(value) <= _LARGEST:
        yield set, _put_set
    if _has_attributes(value):
        yield _attributes, _put_attributes


def _has_attributes(value: Any) -> bool:
    if isinstance(value, type):
        return not effects.is_library(value.__module__) and not effects.is_standard(value.__module__)
    if isinstance(value, (types.ModuleType, types.MethodType, types.BuiltinFunctionType)):
        return False
    return hasattr(value, "__dict__") or bool(slots(value))


def is_opaque(value: Any) -> bool:
    """Whether a value is a part of Python or of a library, whose insides are not the user's business."""
    kind = type(value)
    return effects.is_library(kind.__module__) or effects.is_standard(kind.__module__) and not isinstance(
        value, (types.SimpleNamespace, dict, list, set, tuple, frozenset, collections.deque, types.FunctionType)
    ) and kind.__module__ not in ("argparse", "types", "typing")  # fmt: skip


def _reached(value: Any, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What a value leads to, and how that is written."""
    if isinstance(value, Tensor):
        return
    if isinstance(value, types.ModuleType):
        own = not effects.is_library(value.__name__) and not effects.is_standard(value.__name__)
        if not isinstance(names, Everything):
            inside = [(n, v) for n, v in list(vars(value).items()) if n in names]
            yield from ((f".{n}", v) for n, v in inside if own or isinstance(v, (types.ModuleType, types.MethodType)))
        return
    if isinstance(value, types.MethodType):
        yield "", value.__self__
        if isinstance(value.__func__, CACHE):
            yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield from (("", v) for v in (value.func, value.args, value.keywords))
    elif isinstance(value, weakref.ref):
        yield "()", value()
    elif isinstance(value, WEAK):
        yield "", vars(value)["data"]  # a dict or a set of weak references
    elif isinstance(value, types.FunctionType):
        yield from _reached_by_function(value)
    elif isinstance(value, types.BuiltinFunctionType):
        yield "", value.__self__
    elif isinstance(value, contextvars.ContextVar):
        yield ".get()", value.get(None)
    elif isinstance(value, dict):
        yield from (
            (f"[{k!r}]" if isinstance(k, (str, int)) else "[...]", v) for k, v in list(dict.items(value))[:_LARGEST]
        )
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from (("[...]", v) for v in list(value)[:_LARGEST])
    if isinstance(value, type) or not is_opaque(value):
        yield from _reached_by_attribute(value, names)


def _reached_by_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if effects.is_library(function.__module__) or effects.is_standard(function.__module__):
        return
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield from ((f".{name}", v) for name, v in closed_over(function))


def closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What the free variables of a function are bound to."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _reached_by_attribute(value: Any, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        if _has_attributes(value):
            for cls in value.__mro__:
                if _has_attributes(cls):
                    yield from ((f".{n}", v) for n, v in list(vars(cls).items()) if n in names and n[:2] != "__")
        return
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        yield from ((f".{n}", v) for n, v in list(inside.items()) if n in names)
    yield from ((f".{n}", getattr(value, n)) for n in slots(value) if n in names and hasattr(value, n))
    if isinstance(value, nn.Module):
        tables = (value._parameters, value._buffers, value._modules)
        yield from ((f".{n}", v) for t in tables for n, v in t.items() if n in names)
    if type(value).__module__ != "builtins":
        yield "", type(value)


# Looking at values, and putting them back.


def _change(kept: _Kept) -> OutsideChange | None:
    now = kept.now(kept.value)
    if _same(kept.before, now):
        return None
    if isinstance(now, dict) and isinstance(kept.before, dict):
        added = tuple(v for k, v in now.items() if k not in kept.before or not _alike(kept.before[k], v))
        only = all(k in now and _alike(now[k], v) for k, v in kept.before.items())
        return OutsideChange(kept.name, added, only, kept.value)
    if isinstance(now, list) and isinstance(kept.before, list) and not effects.is_array(kept.value):
        added = tuple(v for v in now if id(v) not in set(map(id, kept.before)))
        grown = len(now) > len(kept.before) and all(map(_alike, kept.before, now))
        return OutsideChange(
            kept.name, added, grown or isinstance(kept.value, dict), kept.value
        )  # a name of a namespace
    return OutsideChange(kept.name, (), False, kept.value)


def _same(before: Any, now: Any) -> bool:
    if isinstance(now, dict) and isinstance(before, dict):
        same = len(before) == len(now) and all(map(_is_same_key, before, now))
        return same and all(map(_alike, before.values(), now.values()))
    if isinstance(now, list):
        return len(before) == len(now) and all(map(_alike, before, now))
    if isinstance(now, set):
        return len(before) == len(now) and {*map(id, before)} == {*map(id, now)}
    if isinstance(now, tuple) and now and isinstance(now[-1], Tensor):
        return bool(before[0] == now[0])
    if isinstance(now, Tensor):
        return torch.equal(before, now)
    return bool(before is now or before == now)


def _is_same_key(before: Any, now: Any) -> bool:
    """Weak references are compared themselves: two that are equal ask what they refer to whether it is equal."""
    return before is now or not isinstance(now, weakref.ref) and bool(before == now)


def _alike(before: Any, now: Any) -> bool:
    return before is now or type(before) is type(now) and isinstance(now, _ATOMS) and before == now


def _items(value: Any) -> dict[Any, Any]:
    return dict(_table(value).items(value))


def _table(value: Any) -> Any:
    """The class whose methods look into a dict and past what its own class may do."""
    return collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict


def _put_items(value: Any, before: dict[Any, Any]) -> None:
    table = _table(value)
    for key in [k for k in table.keys(value) if k not in before]:
        table.__delitem__(value, key)
    if [*table.keys(value)] != [*before]:
        table.clear(value)
    for key, held in before.items():
        table.__setitem__(value, key, held)


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
    if isinstance(value, type):  # Python notes things on classes by itself: `__slotnames__`, when one is copied
        return {name: held for name, held in inside.items() if name[:2] != "__"}
    if isinstance(value, nn.Module):
        inside |= {f"{t}.{n}": v for t in ("_parameters", "_buffers", "_modules") for n, v in inside.get(t, {}).items()}
    return inside | {n: getattr(value, n) for n in slots(value) if hasattr(value, n)}


def _put_attributes(value: Any, before: dict[str, Any]) -> None:
    now = _attributes(value)
    for name in (n for n in now if n not in before):
        _put_attribute(value, name, _NOTHING)
    for name, held in before.items():
        if name not in now or not _alike(held, now[name]):
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


def _put_of_module(module: types.ModuleType, name: str, held: Any) -> None:
    if held is _NOTHING:
        delattr(module, name)
    else:
        setattr(module, name, held)


def _bound(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return [_NOTHING]


def _bind(cell: types.CellType, before: list[Any]) -> None:
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
    return x._version if not x.is_inference() else 0, x.detach().clone()


def _put_tensor(x: Tensor, before: Any) -> None:
    with torch.no_grad():
        x.copy_(before[1])
    if not x.is_inference():
        set_version_counter((x,), (before[0],))  # nobody is to see that it was written and put back


def _array(x: Any) -> Any:
    return x.copy().tolist() if x.dtype != object else list(x.flat)


def _put_array(x: Any, before: Any) -> None:
    x[...] = before if x.dtype != object else type(x)(x.shape, dtype=object)


def _variable(x: contextvars.ContextVar[Any]) -> Any:
    return x.get(_NOTHING)


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
