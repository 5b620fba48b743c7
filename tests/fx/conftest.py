"""Small hand-written models for all tests of the FX pass."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse

WIDTH, HEADS, LENGTH = 16, 2, 8


class Attention(nn.Module):
    """nanoGPT's attention without its flash path."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(p)
        self.heads = HEADS
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention(p)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList([Block(p) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 20, (2, LENGTH))


def fused_rules(model: nn.Module) -> set[str]:
    return {s.rule for s in autofuse.report(model).sites if s.status == "fused"}


def computed(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The output and all gradients."""
    model.zero_grad()
    torch.manual_seed(1)
    output = model(*args, **kwargs)
    (output * torch.linspace(0, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    return output, [p.grad for p in model.parameters()]


def assert_same(a: nn.Module, b: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Equal outputs and gradients, except for rounding in float32: 1e-5 for values of order one, about 80 units of
    rounding."""
    (x, dx), (y, dy) = computed(a, *args, **kwargs), computed(b, *args, **kwargs)
    for one, other in zip([x, *dx], [y, *dy], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def optimized(model: nn.Module, *example: Any) -> nn.Module:
    return autofuse.optimize(copy.deepcopy(model), example, verify=False)
