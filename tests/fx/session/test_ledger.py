"""A report names each place once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse


class Attention(nn.Module):
    """Returns its weights, which may be read, next to its result."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return weights @ value, weights


class Block(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.attention, self.reads = Attention(), reads
        self.register_buffer("mask", torch.ones(16, 16).triu(1).bool())

    def forward(self, x: Tensor) -> Tensor:
        result, weights = self.attention(x, self.mask)
        return x + result + weights.sum() if self.reads else x + result


@pytest.mark.parametrize(("reads", "rule"), [(False, "AF101"), (True, "AF102")])
def test_attention_whose_weights_are_not_read_is_not_fused_softmax_too(reads: bool, rule: str) -> None:
    model, x = Block(reads), torch.randn(2, 16, 32)
    expected = model(x)
    autofuse.optimize(model, x, tune=False)
    fused = [s.rule for s in autofuse.report(model).with_status("fused") if s.module == "attention"]
    assert fused == [rule]
    torch.testing.assert_close(model(x), expected)
    result, weights = model.attention(x, model.mask)  # its weights are read here, and stay right
    torch.testing.assert_close(weights @ model.attention.qkv(x)[..., 64:], result)


def _attend(_: Any, x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(-2, -1) * float(x.max()), -1) @ x


class Configured(nn.Module):
    """Calls a function that it was made with."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def test_a_function_that_an_instance_holds_may_contain_a_site() -> None:
    model = autofuse.optimize(Configured(_attend), torch.randn(2, 4, 8), tune=False)
    reasons = [(s.status, s.reason) for s in autofuse.report(model)]
    assert any(status == "declined" and "needs the values" in reason for status, reason in reasons), reasons
    assert not list(autofuse.report(autofuse.optimize(Configured(lambda _, x: x + 1), torch.randn(2, 4), tune=False)))
