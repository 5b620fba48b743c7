"""Plain data to JSON and back, and the errors for malformed data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from autofuse.results.data import Malformed, dumped, loaded


class Pair(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Leaf:
    count: int
    ratio: float = 1.0
    flag: bool = False
    pair: Pair | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    kind: Literal["a", "b"] = "a"
    leaves: tuple[Leaf, ...] = ()
    fixed: tuple[int, str] = (0, "")
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    maybe: float | None = None


TREE = Tree(
    "x", "b", (Leaf(1), Leaf(2, 0.5, True, Pair(1.0, 2.0))), (7, "y"), {"left": Leaf(3)}, 1e-300
)  # fmt: skip


def test_written_data_is_read_back_unchanged() -> None:
    assert loaded(Tree, json.loads(json.dumps(dumped(TREE)))) == TREE


def test_a_missing_field_has_its_default_and_an_unknown_field_is_ignored() -> None:
    assert loaded(Tree, {"name": "x", "of a later version": 1}) == Tree("x")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_write_become_null_and_are_read_as_nan(value: float) -> None:
    assert dumped(Leaf(1, value))["ratio"] is None
    assert math.isnan(loaded(Leaf, {"count": 1, "ratio": None}).ratio)


def test_integers_are_numbers_but_booleans_are_not() -> None:
    assert loaded(Leaf, {"count": 1, "ratio": 2}).ratio == 2.0
    with pytest.raises(Malformed, match=r"Leaf\.count is True, and should be an integer\."):
        loaded(Leaf, {"count": True})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "Tree is [], and should be an object."),
        ({}, "Tree lacks name."),
        ({"name": None}, "Tree.name is None, and should be a string."),
        ({"name": "x", "kind": "c"}, "Tree.kind is 'c', and should be one of 'a', 'b'."),
        ({"name": "x", "leaves": {}}, "Tree.leaves is {}, and should be an array."),
        ({"name": "x", "leaves": [{"count": 1}, {}]}, "Tree.leaves[1] lacks count."),
        ({"name": "x", "leaves": [{"count": 1.5}]}, "Tree.leaves[0].count is 1.5, and should be an integer."),
        ({"name": "x", "leaves": [{"count": 1, "pair": [1]}]}, "Tree.leaves[0].pair has 1 entries, but should have 2."),
        ({"name": "x", "leaves": [{"count": 1, "pair": ["a", 2]}]}, "pair[0] is 'a', and should be an integer or"),
        ({"name": "x", "fixed": [1]}, "Tree.fixed has 1 entries, but should have 2."),
        ({"name": "x", "by_name": {"left": 3}}, "Tree.by_name.left is 3, and should be an object."),
        ({"name": "x", "maybe": "1"}, "Tree.maybe is '1', and should be"),
        ({"name": "x", "maybe": 10**400}, "Tree.maybe is too large to be a number."),
    ],
)
def test_malformed_data_is_refused_with_its_place_and_value(data: Any, said: str) -> None:
    with pytest.raises(Malformed) as caught:
        loaded(Tree, data)
    assert said in str(caught.value)
