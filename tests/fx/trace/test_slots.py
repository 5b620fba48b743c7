"""Tests of slots: attributes that are not in an object's `__dict__`."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from autofuse.fx.trace.slots import slots


class Base:
    __slots__ = ("a",)


class Derived(Base):
    __slots__ = ("__dict__", "b")


def test_slots_of_all_bases_are_found() -> None:
    assert sorted(slots(Derived())) == ["a", "b"]


def test_other_objects_have_no_slots() -> None:
    assert not slots(SimpleNamespace(a=1)) and not slots(functools.partial(len)) and not slots(len) and not slots(Base)
