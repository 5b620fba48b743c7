"""What a value leads to is found, whatever kind of value it is."""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autofuse.fx.trace.reachable import EVERYTHING, attributes_of_tensor, referents, value_of_variable
from autofuse.fx.trace.snapshots import Snapshot


class _Meter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self, value: int) -> None:
        self.seen.append(value)


def _holding(holder: Any, meter: _Meter) -> Any:
    holder.meter = meter
    return holder


def _local(meter: _Meter) -> Any:
    return _holding(threading.local(), meter)


def _of_class(held: Any) -> Any:
    return type("Holder", (), {"meter": held, "__module__": __name__})


def _of_array(meter: _Meter) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = meter
    return array


_HOLDERS = {
    "a list": lambda m: [m],
    "a view of a dict": lambda m: {"meter": m}.values(),
    "a proxy of a dict": lambda m: types.MappingProxyType({"meter": m}),
    "a UserDict": lambda m: collections.UserDict(meter=m),
    "a ChainMap": lambda m: collections.ChainMap({"meter": m}),
    "the keys of a dict": lambda m: {m: 1},
    "a weak dict": lambda m: weakref.WeakKeyDictionary({m: 1}),
    "a context variable": lambda m: contextvars.ContextVar("meter", default=m),
    "a thread-local object": _local,
    "an array of objects": _of_array,
    "a tensor": lambda m: _holding(torch.zeros(1), m),
    "a module of torch": lambda m: _holding(nn.Identity(), m),
    "a static method of a class": lambda m: _of_class(staticmethod(m.add)),
    "a method of a list": lambda m: [m].append,
    "a special method of a list": lambda m: [m].__len__,
    "a partial": lambda m: functools.partial(m.add, 1),
    "a member of an enum": lambda m: enum.Enum("Kept", {"A": m}, module=__name__),
}


@pytest.mark.parametrize("kind", _HOLDERS)
def test_an_object_is_restored_behind(kind: str) -> None:
    meter = _Meter()
    holder, snapshot = _HOLDERS[kind](meter), Snapshot()
    snapshot.note(holder, "holder", frozenset({"meter", "seen", "value"}))
    meter.add(1)
    assert [change.owner for change in snapshot.changes()] == [meter.seen]
    snapshot.restore()
    assert meter.seen == []


def test_the_elements_of_a_container_of_a_library_are_noted_but_not_followed() -> None:
    snapshot, before = Snapshot(), dict(sys.modules)
    snapshot.note_contents(sys.modules, "sys.modules")
    sys.modules["autofuse_test_module"] = types.ModuleType("autofuse_test_module")
    snapshot.restore()
    assert dict(sys.modules) == before


def test_the_namespace_of_a_module_is_restored_without_its_submodules() -> None:
    module, snapshot = types.ModuleType("settings"), Snapshot()
    module.__dict__["n"] = 1
    snapshot.note_namespace(module)
    vars(module).update(n=2, more=3, sub=types)
    snapshot.restore()
    assert vars(module)["n"] == 1
    assert "more" not in vars(module)
    assert vars(module)["sub"] is types


def test_an_unset_variable_without_a_default_is_missing() -> None:
    assert value_of_variable(contextvars.ContextVar("unset"), "nothing") == "nothing"
    assert value_of_variable(contextvars.ContextVar("with default", default=3), "nothing") == 3


def test_attributes_of_a_tensor_are_those_that_a_program_sets() -> None:
    x = torch.zeros(1)
    assert attributes_of_tensor(x) == {}
    x.scale = 2  # type: ignore[attr-defined]
    assert attributes_of_tensor(x) == {"scale": 2}
    assert list(referents(x, EVERYTHING)) == [(".scale", 2)]


def test_a_tensor_gets_back_its_memory_its_gradient_and_its_attributes() -> None:
    x, snapshot = torch.zeros(2, requires_grad=True), Snapshot()
    place = x.data_ptr()
    snapshot.note(x, "x")
    x.data = torch.ones(3)
    x.grad, x.scale = torch.ones(3), 2  # type: ignore[attr-defined]
    snapshot.restore()
    assert (x.data_ptr(), x.tolist(), x.grad, hasattr(x, "scale")) == (place, [0.0, 0.0], None, False)


def test_a_cache_that_was_empty_is_empty_again_and_another_one_keeps_its_results() -> None:
    computed: list[int] = []
    empty, filled = functools.lru_cache(computed.append), functools.lru_cache(lambda n: computed.append(n))
    filled(1)
    snapshot = Snapshot()
    snapshot.note(empty, "empty")
    snapshot.note(filled, "filled")
    empty(2)
    snapshot.restore()
    computed.clear()
    empty(2)
    filled(1)
    assert computed == [2]
