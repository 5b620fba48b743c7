"""autofuse.fx.verify: right rewrites pass in every dtype and size, and each of a list of wrong ones is caught."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse import ops
from autofuse.fx.verify import Outcome, Reference, verify

Forward = Callable[..., Any]
B, T, C, H = 2, 8, 16, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Attention(nn.Module):
    """Self-attention by hand; `core` is (query, key, value, mask, p, training) -> result, to be rewritten."""

    def __init__(self, core: Forward, p: float = 0.0, width: int = C) -> None:
        super().__init__()
        self.qkv, self.out, self.drop, self.core = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Dropout(p),
            core,
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.core(*heads, mask, self.drop.p, self.training).transpose(1, 2).flatten(2))


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return F.dropout(torch.softmax(scores, dim=-1), p, training) @ v


def upcast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, p, training) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Tensor:
    scale = q.shape[-1] ** -0.5
    return ops.attention(q, k, v, mask=mask, scale=scale, dropout_p=p, training=training)


class Norm(nn.Module):
    """A norm by hand over `width` channels."""

    def __init__(self, core: Forward, width: int = C) -> None:
        super().__init__()
        self.weight, self.bias, self.core = nn.Parameter(torch.rand(width)), nn.Parameter(torch.randn(width)), core

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x, self.weight, self.bias)


def norm_by_hand(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, unbiased: bool = False) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, unbiased=unbiased, keepdim=True) + eps) * weight + bias


def rms_by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x.float()
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) + bias


def rewritten(module: nn.Module, **attributes: Any) -> nn.Module:
    twin = copy.deepcopy(module)
    for name, value in attributes.items():
        setattr(twin, name, value)
    return twin


def causal(t: int = T) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hand", [by_hand, upcast])
@pytest.mark.parametrize("mask", ["none", "causal", "a row masked out whole"])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_fused_attention_passes(dtype: torch.dtype, hand: Forward, mask: str, magnitude: float) -> None:
    module = Attention(hand, p=0.1).to(dtype)
    given = {"none": None, "causal": causal(), "a row masked out whole": causal() & (torch.arange(T) > 0)[:, None]}[
        mask
    ]
    core = fused if hand is by_hand else lambda q, k, v, mask, p, training: ops.attention(
        q, k, v, mask=mask, scale=q.shape[-1] ** -0.5, dropout_p=p, training=training, fill=torch.finfo(torch.float32).min
    )  # fmt: skip
    x = (magnitude * torch.randn(B, T, C)).to(dtype)
    outcome = verify(module, rewritten(module, core=core), (x, given))
    assert outcome.ok, outcome
    assert outcome.max_error <= outcome.bound and not outcome.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_passes_on_a_long_sequence(dtype: torch.dtype) -> None:
    module = Attention(by_hand).to(dtype)
    outcome = verify(module, rewritten(module, core=fused), (torch.randn(1, 1024, C).to(dtype), causal(1024)))
    assert outcome.ok, outcome


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 8, 64, 768])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_fused_norms_pass(dtype: torch.dtype, width: int, magnitude: float) -> None:
    x = (magnitude * torch.randn(B, T, width)).to(dtype)
    for hand, core in ((norm_by_hand, ops.layer_norm), (rms_by_hand, lambda x, w, b: ops.rms_norm(x, w) + b)):
        module = Norm(hand, width).to(dtype)
        outcome = verify(module, rewritten(module, core=core), (x,))
        assert outcome.ok, outcome


def attention(wrong: Forward, p: float = 0.0, mask: Any = "causal", **module: Any) -> Outcome:
    original = Attention(by_hand, p, **module)
    given = causal() if mask == "causal" else mask
    return verify(original, rewritten(original, core=wrong), (torch.randn(B, T, C), given))


def off(core: Forward = ops.attention, **change: Any) -> Forward:
    """Fused attention with some of its arguments changed."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, training: bool) -> Any:
        right = {"mask": mask, "scale": q.shape[-1] ** -0.5, "dropout_p": p, "training": training}
        return core(q, k, v, **{**right, **change})

    return wrong


WRONG: dict[str, Callable[[], Outcome]] = {
    "no scale": lambda: attention(off(scale=1.0)),
    "a scale that is off by a thousandth": lambda: attention(off(scale=0.5005)),
    "the mask's polarity": lambda: attention(
        lambda q, k, v, mask, p, t: ops.attention(q, k, v, mask=~mask, scale=0.5), mask=torch.rand(T, T) > 0.5
    ),
    "no mask": lambda: attention(off(mask=None)),
    "no additive mask": lambda: attention(off(mask=None), mask=torch.randn(T, T)),
    "causal where it is not": lambda: attention(off(is_causal=True), mask=None),
    "no dropout": lambda: attention(off(dropout_p=0.0), p=0.2),
    "another rate of dropout": lambda: attention(off(dropout_p=0.3), p=0.1),
    "dropout in evaluation": lambda: attention(off(training=True), p=0.2),
    "dropout that the original has not": lambda: attention(off(dropout_p=0.2)),
    "dropout that does not scale": lambda: attention(
        lambda *a: (
            by_hand(*a) * (1 - a[4]) if a[5] and a[4] and not torch.equal(by_hand(*a), by_hand(*a)) else by_hand(*a)
        ),
        p=0.2,
    ),
    "a gradient cut off from the key": lambda: attention(lambda q, k, v, *a: fused(q, k.detach(), v, *a)),
    "no gradient at all": lambda: attention(lambda *a: fused(*a).detach()),
    "another dtype": lambda: attention(lambda *a: fused(*a).double()),
    "another shape": lambda: attention(lambda *a: fused(*a)[:, :, :1].expand(-1, -1, T, -1)),
    "heads in another order": lambda: attention(lambda *a: fused(*a).flip(1)),
    "query and key swapped": lambda: attention(lambda q, k, *a: fused(k, q, *a)),
    "softmax over the queries": lambda: attention(lambda q, k, v, *a: torch.softmax(q @ k.mT * 0.5, -2) @ v, mask=None),
    "an error": lambda: attention(lambda *a: 1 / 0),
    "NaN where the original is finite": lambda: attention(lambda *a: fused(*a) / (torch.arange(T) > 0)[:, None] * 0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_attention_is_caught(wrong: Callable[[], Outcome]) -> None:
    outcome = wrong()
    assert not outcome.ok
    assert outcome.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 64])
def test_an_unbiased_variance_is_caught(dtype: torch.dtype, width: int) -> None:
    original = Norm(lambda *a: norm_by_hand(*a, unbiased=True), width).to(dtype)
    assert not verify(original, rewritten(original, core=ops.layer_norm), (torch.randn(B, T, width).to(dtype),)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps, wrong", [(1e-5, 1e-6), (1e-5, 1e-4), (1e-6, 1e-5), (1e-6, 1e-7)])
def test_an_eps_that_is_off_by_ten_is_caught(dtype: torch.dtype, eps: float, wrong: float) -> None:
    original = Norm(lambda *a: norm_by_hand(*a, eps=eps)).to(dtype)
    fused = lambda *a: ops.layer_norm(*a, eps=wrong)
    assert not verify(original, rewritten(original, core=fused), (torch.randn(B, T, C).to(dtype),)).ok
