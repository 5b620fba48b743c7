"""The bytecode tells which containers and attributes a function can change, and how it reaches them."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.fx.trace.alterations import Alteration, alterations_of

SETTINGS: Any = {}


def sets_an_item(self: Any, k: int) -> None:
    self.table["n"] = k


def sets_an_item_of_a_global(k: int) -> None:
    SETTINGS["n"] = k


def sets_a_slice(self: Any, k: int) -> None:
    self.box.items[:] = [k]


def sets_an_inner_item(self: Any, k: int) -> None:
    self.table["a"]["n"] = k


def counts(self: Any) -> None:
    self.table["n"] += 1


def deletes(self: Any) -> None:
    del self.table["n"]


def appends(self: Any, k: int) -> None:
    self.log.append(k)


def assigns(self: Any, k: int) -> None:
    self.box.n = k


def assigns_of_a_global(k: int) -> None:
    SETTINGS.n = k


def by_another_name(self: Any, k: int) -> None:
    table = self.table
    table["n"] = k


def closes_over(box: Any) -> Any:
    def inner(k: int) -> None:
        box["n"] = k

    return inner


def reads(self: Any) -> Any:
    return self.table["n"], self.log.count(3), SETTINGS.n


SELF = ("local", "self")
CASES = [
    (sets_an_item, Alteration(*SELF, ("table",))),
    (sets_an_item_of_a_global, Alteration("global", "SETTINGS")),
    (sets_a_slice, Alteration(*SELF, ("box", "items"))),
    (sets_an_inner_item, Alteration(*SELF, ("table",))),
    (counts, Alteration(*SELF, ("table",))),
    (deletes, Alteration(*SELF, ("table",))),
    (appends, Alteration(*SELF, ("log",))),
    (assigns, Alteration(*SELF, ("box",), "n")),
    (assigns_of_a_global, Alteration("global", "SETTINGS", (), "n")),
    (by_another_name, Alteration(*SELF, ("table",))),
    (closes_over({}), Alteration("free", "box")),
]


@pytest.mark.parametrize(("function", "expected"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_change_is_found_with_the_way_to_what_changes(function: Any, expected: Alteration) -> None:
    assert alterations_of(function.__code__) == (expected,)


def test_reads_change_nothing() -> None:
    assert alterations_of(reads.__code__) == ()
