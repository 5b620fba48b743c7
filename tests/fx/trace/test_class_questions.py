"""If a forward asks for the class of a tensor, a later tensor of another class is noticed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.class_questions import class_guard, is_guarded, is_torch_class
from autofuse.fx.trace.user_code import Execution


class Tagged(Tensor):
    """A class that overrides no function."""


class TaggedParameter(nn.Parameter):
    pass


@functools.singledispatch
def factor(x: object) -> float:
    return 1.0


@factor.register
def _(x: Tagged) -> float:
    return 3.0


@factor.register
def _(x: TaggedParameter) -> float:
    return 3.0


USER_CLASSES = Tagged, TaggedParameter


def by_match(x: object) -> float:
    match x:
        case Tagged() | TaggedParameter():
            return 3.0
    return 1.0


QUERIES: dict[str, Callable[[Any], float]] = {
    "isinstance": lambda x: 3.0 if isinstance(x, USER_CLASSES) else 1.0,
    "__class__": lambda x: 3.0 if x.__class__ in USER_CLASSES else 1.0,
    "issubclass": lambda x: 3.0 if issubclass(x.__class__, USER_CLASSES) else 1.0,
    "match": by_match,
    "singledispatch": factor,
}


class Block(nn.Module):
    def __init__(self, query: str) -> None:
        super().__init__()
        self.query, self.weight = QUERIES[query], nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.ones(4))
        self.plain = torch.ones(4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        factors = self.query(self.weight) * self.query(self.shift) * self.query(self.plain) * self.query(y)
        return factors * torch.softmax((x * self.weight) @ y.transpose(-2, -1) * 0.3, -1) @ y + self.shift + self.plain


CHANGES: dict[str, Callable[[Block, Tensor], Tensor | None]] = {
    "the parameter": lambda m, y: setattr(m, "weight", TaggedParameter(m.weight.detach())),
    "the buffer": lambda m, y: m._buffers.update(shift=torch.ones(4).as_subclass(Tagged)),
    "the attribute": lambda m, y: setattr(m, "plain", torch.ones(4).as_subclass(Tagged)),
    "the argument": lambda m, y: y.as_subclass(Tagged),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_of_another_class_is_noticed(query: str, change: str) -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    original = Block(query)
    optimized = autofuse.optimize(copy.deepcopy(original), (x, y), tune=False)
    torch.testing.assert_close(optimized(x, y), original(x, y))
    results = []
    for module in (original, optimized):
        argument = CHANGES[change](module, y)
        results.append([module(x, y if argument is None else argument).as_subclass(Tensor) for _ in range(2)])
    torch.testing.assert_close(results[1], results[0])


def test_code_that_queries_classes_is_fused_with_a_guard_for_each_tensor() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    optimized = autofuse.optimize(Block("isinstance"), (x, y), tune=False)
    assert autofuse.report(optimized).with_status("fused")


def _guard(function: Any) -> str:
    return class_guard([Execution(function.__code__, function.__globals__, {}, {})])


def test_only_code_that_queries_classes_is_guarded_and_exactly_only_if_it_names_a_class_of_torch() -> None:
    def plain(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def asks_user_class(x: Tensor) -> bool:
        return isinstance(x, Tagged)

    def asks_torch_class(x: Tensor) -> bool:
        return isinstance(x, nn.Parameter)

    assert _guard(plain) == "" and _guard(asks_user_class) == "_of_torchs_class({0}, {1})"
    assert _guard(asks_torch_class) == "type({0}) is {1}"


def test_which_classes_belong_to_torch() -> None:
    assert (
        is_torch_class(Tensor) and is_torch_class(nn.Buffer) and not is_torch_class(Tagged) and not is_torch_class(int)
    )
    assert is_guarded(Tensor) and is_guarded(nn.Parameter) and not is_guarded(Tagged) and not is_guarded(type(None))
