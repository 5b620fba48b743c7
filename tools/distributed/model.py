"""The model that is wrapped: a small decoder with hand-written layers.

It is written for sharding: the number of heads in a view is -1, so that tensor parallelism may leave some heads on each
rank. This file does not know ranks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN, VOCABULARY, LENGTH, LAYERS = 32, 4, 48, 32, 8, 2


class RootMeanSquare(nn.Module):
    """RMS norm: (..., width) -> (..., width)."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class Attention(nn.Module):
    """Causal self-attention: (batch, length, width) -> (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    """A gated MLP: (batch, length, width) -> (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        return self.down(gate * torch.sigmoid(gate) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each with a pre-norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = RootMeanSquare(), Attention()
        self.mlp_norm, self.mlp = RootMeanSquare(), Gated()

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.mlp(self.mlp_norm(h))


class Decoder(nn.Module):
    """Tokens (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = RootMeanSquare()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
