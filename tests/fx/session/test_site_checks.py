"""Forwards are checked on copies before they are installed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import assert_same, fused_rules


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) * 0.3
        if bias is not None:
            scores = scores + bias
        return scores.softmax(dim=-1) @ v


class TwoWays(nn.Module):
    """One child, called without a bias for few tokens and with one for many, as RegionViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.bias = Attention(), nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        few = self.attention(x[:, ::2])
        many: Tensor = self.attention(x, self.bias)
        return few.mean(dim=1) + many.mean(dim=1)


def test_a_child_with_two_kinds_of_calls_is_checked_for_the_planned_kind() -> None:
    plain, x = TwoWays(), torch.randn(2, 6, 8)
    fused = autofuse.optimize(TwoWays(), x)
    fused.load_state_dict(plain.state_dict())
    assert fused_rules(fused) == {"AF101"} and not autofuse.report(fused).with_status("rolled-back")
    for training in (False, True):
        assert_same(plain.train(training), fused.train(training), x)
