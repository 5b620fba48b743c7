"""A snapshot notices later changes of values and restores them."""

from __future__ import annotations

import contextvars
import dataclasses
import random
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from autofuse.fx.trace.snapshots import Snapshot


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int = 0


class Plain:
    shared: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.inner: Any = {"a": [1]}


def changed_function() -> None: ...


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
VARIABLE.set(1)


def set_attribute(name: str, value: Any) -> Callable[[Any], None]:
    return lambda held: setattr(held, name, value)


CASES: list[tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda: [1, 2], lambda v: v.append(3), list),
    (lambda: {"a": 1, "b": 2}, lambda v: v.pop("a"), lambda v: list(v.items())),
    (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a"), lambda v: list(v.items())),
    (lambda: {1, 2}, lambda v: v.add(3), sorted),
    (lambda: deque([1, 2], maxlen=2), lambda v: v.append(3), lambda v: (list(v), v.maxlen)),
    (lambda: SimpleNamespace(a=1), set_attribute("a", 2), lambda v: dict(vars(v))),
    (Slotted, set_attribute("n", 2), lambda v: v.n),
    (Plain, lambda v: v.inner["a"].append(2), lambda v: list(v.inner["a"])),
    (Plain, lambda v: v.shared.append(2), lambda v: list(v.shared)),
    (lambda: changed_function, set_attribute("calls", 2), lambda v: dict(vars(v))),
    (lambda: np.zeros(3), lambda v: v.__setitem__(0, 1.0), lambda v: v.tolist()),
    (lambda: torch.zeros(3), lambda v: v.add_(1), lambda v: v.tolist()),
    (lambda: random.Random(0), lambda v: v.random(), lambda v: v.getstate()),
    (lambda: np.random.default_rng(0), lambda v: v.random(), lambda v: str(v.bit_generator.state)),
    (lambda: torch.Generator().manual_seed(0), lambda v: torch.rand(1, generator=v), lambda v: v.get_state().tolist()),
    (lambda: VARIABLE, lambda v: v.set(3), lambda v: v.get()),
    (lambda: [{"a": [Plain()]}], lambda v: setattr(v[0]["a"][0], "inner", 3), lambda v: v[0]["a"][0].inner),
]


@pytest.mark.parametrize(("make", "change", "read"), CASES)
def test_a_change_is_noticed_and_restored(
    make: Callable[[], Any], change: Callable[[Any], Any], read: Callable[[Any], Any]
) -> None:
    value, snapshot = make(), Snapshot()
    before = read(value)
    snapshot.note(value, "value")
    assert not list(snapshot.changes())
    change(value)
    assert list(snapshot.changes()) and read(value) != before
    snapshot.restore()
    assert read(value) == before


def test_a_name_in_a_namespace_is_restored() -> None:
    namespace, snapshot = {"A": 1}, Snapshot()
    for name in ("A", "B"):
        snapshot.note_name(namespace, name)
    namespace.update(A=2, B=3)
    assert sorted(c.name for c in snapshot.changes()) == ["A", "B"]
    snapshot.restore()
    assert namespace == {"A": 1}


def test_a_dict_that_only_grew_may_be_a_cache() -> None:
    cache: dict[int, Any] = {1: "a"}
    snapshot = Snapshot()
    snapshot.note(cache, "cache")
    cache[2] = "b"
    (change,) = snapshot.changes()
    assert change.may_be_cache and change.added == ("b",)
    del cache[1]
    (change,) = snapshot.changes()
    assert not change.may_be_cache


def test_an_equal_number_of_the_same_type_is_not_a_change() -> None:
    value, snapshot = SimpleNamespace(a=float("1.5")), Snapshot()
    snapshot.note(value, "value")
    value.a = float("1.50")
    assert not list(snapshot.changes())
    value.a = True
    assert list(snapshot.changes())


class _Key:
    pass


def test_the_content_of_a_weak_container_is_restored() -> None:
    key, other, kept = _Key(), _Key(), [_Key(), _Key()]
    counts: Any = weakref.WeakKeyDictionary({key: 1, **dict.fromkeys(kept, 0)})
    names: Any = weakref.WeakValueDictionary({"a": key})
    members: Any = weakref.WeakSet([key])
    snapshot = Snapshot()
    for value in (counts, names, members):
        snapshot.note(value, "value")
    assert not list(snapshot.changes())
    counts[key] += 1
    counts[other] = 5
    del counts[kept[0]], names["a"]
    names["b"] = other
    members.discard(key)
    assert {id(c.owner) for c in snapshot.changes()} >= {id(v.data) for v in (counts, names, members)}
    snapshot.restore()
    assert counts[key] == 1 and other not in counts and len(counts) == 3
    assert dict(names) == {"a": key} and list(members) == [key]


def test_a_value_that_is_noted_again_after_a_change_keeps_its_first_state() -> None:
    held, snapshot = Plain(), Snapshot()
    held.n = 0  # type: ignore[attr-defined]
    snapshot.note(held, "held", frozenset({"a"}))
    held.n = 3  # type: ignore[attr-defined]
    snapshot.note(held, "held", frozenset({"n"}))
    assert [change.name for change in snapshot.changes()] == ["held"]
    snapshot.restore()
    assert held.n == 0  # type: ignore[attr-defined]
