"""The walk over nested tensors: what it opens, in which order, and what it copies."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from autofuse.torch_private.nested import mapped, plain_parts, tensors_in

A, B, C = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    first: Any
    second: Any = None


@dataclass(slots=True)
class Slotted:
    first: Any
    second: Any = None


class Cache:
    """Holds tensors, and is not a known container."""

    def __init__(self) -> None:
        self.key = A


def numbers(found: Any) -> list[float]:
    return [float(x) for x in found]


@pytest.mark.parametrize(
    "value",
    [
        (A, [B, (C,)]), {"z": A, "a": {"b": B}, "c": C}, OrderedDict(z=A, a=(B, C)), UserDict(x=A, y=[B, C]),
        Pair(A, Pair(B, C)), Record(A, [B, Record(C)]), Slotted(A, [B, Slotted(C)]),
        BaseModelOutput(last_hidden_state=A, hidden_states=(B, C)), [None, A, 3, "x", B, True, C, ..., slice(1, 2)],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_tensors_of_containers_of_any_class_are_listed_in_order(value: Any) -> None:
    assert numbers(tensors_in(value)) == [1.0, 2.0, 3.0]


def test_a_tensor_is_found_in_any_container_and_not_copied() -> None:
    assert [x is A for x in tensors_in((A, [A], {"a": A}))] == [True] * 3
    assert list(tensors_in(A)) == [A]
    assert [type(x) for x in tensors_in([torch.nn.Parameter(A)])] == [torch.nn.Parameter]


@pytest.mark.parametrize("value", [None, Cache(), {"a": Cache()}, Record, torch.Size([2, 3]), "text", {1, 2}, ()])
def test_other_objects_than_containers_are_not_opened(value: Any) -> None:
    assert list(tensors_in(value)) == []


@pytest.mark.parametrize("value", [OrderedDict(a=A), UserDict(a=A), Pair(A, B), Record(A), Slotted(A), [Pair(A, B)]])
def test_containers_of_derived_classes_are_not_plain(value: Any) -> None:
    assert list(tensors_in(value, plain_parts)) == []
    assert numbers(tensors_in((A, [value, {"b": B}]), plain_parts)) == [1.0, 2.0]


def test_mapped_containers_are_copied_and_other_values_stay() -> None:
    cache, pair, given = Cache(), Pair(A, B), [A, None, 3]
    value = {"x": given, "y": (B, cache, pair), "z": "text"}
    made = mapped(lambda x: x * 10 if isinstance(x, Tensor) else x, value)
    assert numbers(tensors_in(made["x"])) == [10.0] and made["x"][1:] == [None, 3]
    assert made["y"][1] is cache and made["y"][2] is pair and made["z"] == "text"
    assert given[0] is A and value["x"] is given and type(made["y"]) is tuple


def test_values_that_are_not_tensors_are_mapped_too() -> None:
    wider = {torch.float32: torch.float64}
    assert mapped(lambda x: wider.get(x, x), [torch.float32, (torch.int64, "a")]) == [
        torch.float64,
        (torch.int64, "a"),
    ]
