"""Where a forward asks a tensor for its class, a tensor of another class that comes later is seen."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.class_questions import class_guard, is_guarded, is_torchs
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


OURS = Tagged, TaggedParameter


def by_match(x: object) -> float:
    match x:
        case Tagged() | TaggedParameter():
            return 3.0
    return 1.0


ASKED: dict[str, Callable[[Any], float]] = {
    "isinstance": lambda x: 3.0 if isinstance(x, OURS) else 1.0,
    "__class__": lambda x: 3.0 if x.__class__ in OURS else 1.0,
    "issubclass": lambda x: 3.0 if issubclass(x.__class__, OURS) else 1.0,
    "match": by_match,
    "singledispatch": factor,
}


class Block(nn.Module):
    def __init__(self, asked: str) -> None:
        super().__init__()
        self.asked, self.weight = ASKED[asked], nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.ones(4))
        self.plain = torch.ones(4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        factors = self.asked(self.weight) * self.asked(self.shift) * self.asked(self.plain) * self.asked(y)
        return factors * torch.softmax((x * self.weight) @ y.transpose(-2, -1) * 0.3, -1) @ y + self.shift + self.plain


CHANGED: dict[str, Callable[[Block, Tensor], Tensor | None]] = {
    "the parameter": lambda m, y: setattr(m, "weight", TaggedParameter(m.weight.detach())),
    "the buffer": lambda m, y: m._buffers.update(shift=torch.ones(4).as_subclass(Tagged)),
    "the attribute": lambda m, y: setattr(m, "plain", torch.ones(4).as_subclass(Tagged)),
    "the argument": lambda m, y: y.as_subclass(Tagged),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("changed", CHANGED)
def test_a_tensor_of_another_class_is_seen(asked: str, changed: str) -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    original = Block(asked)
    optimized = autofuse.optimize(copy.deepcopy(original), (x, y), tune=False)
    torch.testing.assert_close(optimized(x, y), original(x, y))
    results = []
    for module in (original, optimized):
        given = CHANGED[changed](module, y)
        results.append([module(x, y if given is None else given).as_subclass(Tensor) for _ in range(2)])
    torch.testing.assert_close(results[1], results[0])


def test_code_that_asks_gets_its_fusion_and_a_guard_for_each_tensor() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    optimized = autofuse.optimize(Block("isinstance"), (x, y), tune=False)
    assert autofuse.report(optimized).with_status("fused")


def _guard(function: Any) -> str:
    return class_guard([Execution(function.__code__, function.__globals__, {}, {})])


def test_code_that_does_not_ask_is_not_guarded_and_a_sharded_tensor_passes_where_torchs_classes_are_not_named() -> None:
    def plain(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def of_ours(x: Tensor) -> bool:
        return isinstance(x, Tagged)

    def of_torchs(x: Tensor) -> bool:
        return isinstance(x, nn.Parameter)

    assert _guard(plain) == "" and _guard(of_ours) == "_of_torchs_class({0}, {1})"
    assert _guard(of_torchs) == "type({0}) is {1}"


def test_which_classes_are_torchs() -> None:
    assert is_torchs(Tensor) and is_torchs(nn.Buffer) and not is_torchs(Tagged) and not is_torchs(int)
    assert is_guarded(Tensor) and is_guarded(nn.Parameter) and not is_guarded(Tagged) and not is_guarded(type(None))
