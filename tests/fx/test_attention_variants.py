"""Soft caps and sinks in modules: fused spellings, unfused spellings, and weights that the caller drops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import assert_same, fused_rules

B, H, G, T, D = 2, 4, 2, 6, 8


def repeat_heads(x: Tensor) -> Tensor:
    b, g, s, d = x.shape
    return x[:, :, None].expand(b, g, H // G, s, d).reshape(b, H, s, d)


def as_gpt_oss(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], -1)
    both = torch.cat([scores, beside], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    return F.softmax(both, dim=-1, dtype=both.dtype)[..., :-1]


def cut_before_the_cast(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    both = torch.cat((scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)), -1).float()
    return torch.softmax(both, -1).to(scores.dtype)[:, :, :, :-1]


def sinks_first(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([beside, scores], dim=-1), dim=-1)[..., 1:]


def dropped_out_before_the_cut(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], 1)
    return F.dropout(torch.softmax(torch.concat([scores, beside], dim=3), dim=3), 0.0, training)[..., :-1]


def by_length(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], 1)
    return torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)[..., : scores.size(-1)]


Weigh = Callable[[Tensor, Tensor, bool], Tensor]
SINKS: dict[str, Weigh] = {
    "gpt-oss": as_gpt_oss,
    "cast, then cut": cut_before_the_cast,
    "sinks first": sinks_first,
    "dropout, then cut": dropped_out_before_the_cut,
    "cut to the length of the keys": by_length,
}


def two_sinks_first(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 2)
    return torch.softmax(torch.cat([beside, scores[..., 1:]], dim=-1), dim=-1)[..., 1:]


def first_key_dropped(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)[..., 1:]


def nothing_dropped(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores[..., :-1], beside], dim=-1), dim=-1)


def queries_cut(scores: Tensor, sinks: Tensor, training: bool) -> Tensor:
    beside = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)[:, :, :-1, :-1]


KEPT_SINKS: dict[str, Weigh] = {
    "two columns before the scores": two_sinks_first,
    "the first key is dropped": first_key_dropped,
    "nothing is dropped": nothing_dropped,
    "queries are cut, too": queries_cut,
}


class Sunk(nn.Module):
    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.weigh, self.sinks = weigh, nn.Parameter(torch.linspace(-1, 2, H))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.matmul(q, repeat_heads(k).transpose(2, 3)) * 0.25 + mask
        weights = self.weigh(scores, self.sinks, self.training)
        return (weights @ repeat_heads(v)).transpose(1, 2).contiguous(), weights


class Capped(nn.Module):
    """As Gemma 2 spells it."""

    def __init__(self, cap: float = 5.0) -> None:
        super().__init__()
        self.cap, self.factor = cap, nn.Parameter(torch.ones(D))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.matmul(q * self.factor, repeat_heads(k).transpose(2, 3)) * 0.25
        scores = torch.tanh(scores / self.cap) * self.cap
        weights = F.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = F.dropout(weights, p=0.0, training=self.training)
        return (weights @ repeat_heads(v)).transpose(1, 2).contiguous(), weights


class Layer(nn.Module):
    """A caller that reads only the result."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.out = attention, nn.Linear(D, D)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        made, _ = self.attention(q, k, v, mask)
        return self.out(made)


def operands(t: int = T) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, t, D), torch.randn(B, G, t, D), torch.randn(B, G, t, D)


def masks(t: int = T) -> list[Tensor]:
    lowest = torch.finfo(torch.float32).min
    causal = torch.full((t, t), lowest).triu(1).expand(B, 1, t, t)
    padded = causal.clone()
    padded[0, :, :, :2] = lowest  # its first two rows keep nothing
    return [
        causal,
        padded,
        causal.clone().masked_fill(torch.ones(t, t).tril(-3).bool(), lowest),
        torch.zeros(1, 1, t, t),
    ]


def assert_same_with_all_masks(plain: nn.Module, model: nn.Module) -> None:
    for t in (T, T + 3):
        for mask in masks(t):
            assert_same(plain, model, *operands(t), mask)


def copies(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    plain, model = make(), make()
    model.load_state_dict(plain.state_dict())
    return plain, autofuse.optimize(model, (*operands(), masks()[0]), tune=False)


@pytest.mark.parametrize("spelling", SINKS)
def test_sinks_are_fused_if_the_caller_drops_the_weights(spelling: str) -> None:
    plain, model = copies(lambda: Layer(Sunk(SINKS[spelling])))
    assert "AF104" in fused_rules(model)
    assert_same_with_all_masks(plain, model)


@pytest.mark.parametrize("spelling", KEPT_SINKS)
def test_code_that_is_not_a_sink_stays(spelling: str) -> None:
    plain, model = copies(lambda: Layer(Sunk(KEPT_SINKS[spelling])))
    assert "AF104" not in fused_rules(model)
    assert_same(plain, model, *operands(), masks()[0])


def test_weights_that_the_caller_reads_prevent_fused_sinks() -> None:
    _, model = copies(lambda: Sunk(as_gpt_oss))
    assert "AF104" not in fused_rules(model)


def test_soft_caps_are_fused_if_the_caller_drops_the_weights() -> None:
    plain, model = copies(lambda: Layer(Capped()))
    assert "AF103" in fused_rules(model)
    assert_same_with_all_masks(plain, model)


def test_weights_that_the_caller_reads_prevent_fused_soft_caps() -> None:
    _, model = copies(lambda: Capped())
    assert "AF103" not in fused_rules(model)
