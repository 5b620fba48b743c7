"""The attributes of the user's classes that hold more than code, found by way of modules, objects and classes."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.class_state import class_state

EVERY = frozenset({"rows", "ids", "child", "stores", "store", "scale", "method"})


class Store:
    rows: ClassVar[list[int]] = []
    ids = itertools.count()

    def add(self) -> None:
        self.rows.append(next(self.ids))


class Slotted:
    __slots__ = ("store", "unset")

    def __init__(self) -> None:
        self.store = Store()


class Layer(nn.Module):
    rows: ClassVar[list[int]] = []
    scale = 2.0

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.weight, self.stores = nn.Parameter(torch.ones(8)), {"inside": [held]}

    def method(self) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(self.rows))
        self.stores["inside"][0].add()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


@pytest.mark.parametrize(
    ("value", "holders"),
    [
        (Layer(), [Layer]),
        (nn.Sequential(Layer()), [Layer]),
        (Layer(Store()), [Layer, Store]),
        (Slotted(), [Store]),
        ([{"a": Store()}], [Store]),
        (Store, [Store]),
        (3, []),
        (torch.ones(2), []),
    ],
    ids=["layer", "child", "held object", "slot", "containers", "class", "number", "tensor"],
)
def test_lists_and_iterators_of_classes_are_found(value: Any, holders: list[type]) -> None:
    found = {id(held) for _, held in class_state(value, EVERY)}
    assert found == {id(held) for cls in holders for n, held in vars(cls).items() if n in ("rows", "ids")}


def test_only_attributes_that_the_code_reads_are_found() -> None:
    assert [name for name, _ in class_state(Layer(Store()), frozenset({"ids"}))] == []
    assert [name for name, _ in class_state(Layer(Store()), frozenset({"ids", "stores"}))] == ["ids"]


@pytest.mark.parametrize("lazily", [False, True])
def test_optimize_leaves_what_a_class_holds_and_each_call_changes_it_once(lazily: bool) -> None:
    Layer.rows.clear()
    Store.rows.clear()
    model, x = nn.Sequential(Layer(Store()), nn.Linear(8, 8)), torch.randn(2, 8)
    autofuse.optimize(model, *(() if lazily else (x,)))
    assert (Layer.rows, len(Store.rows)) == ([], 0)
    first = next(Store.ids)
    model(x)
    model(x)
    assert (Layer.rows, Store.rows) == ([0, 1], [first + 1, first + 2])
