"""A BERT-like encoder that fills gaps in counting sequences, its layers written by hand.

Run it, or look at what would change:

    python examples/bert.py                  # a few seconds on a CPU; uses a GPU if there is one
    python examples/bert.py --optimize       # the same, with the layers swapped for fused ones
    autofuse rewrite --diff examples/bert.py # the same swap, in this file
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor

PADDING, MASK, FIRST_NUMBER = 0, 1, 2
IGNORED = -100


@dataclass(frozen=True)
class Config:
    """Sizes of the model. The defaults train in seconds on a CPU."""

    numbers: int = 30
    length: int = 48
    width: int = 64
    heads: int = 4
    layers: int = 2
    inner: int = 192
    dropout: float = 0.1

    @property
    def vocabulary(self) -> int:
        return FIRST_NUMBER + self.numbers


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.weight * x + self.bias


class SelfAttention(nn.Module):
    """Every position attends to all that are not padding; `mask` (batch, 1, 1, length) is added to the scores."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.heads
        self.head_dim = config.width // config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def split_heads(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), x.size(1), self.num_heads, self.head_dim)
        return x.permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self.split_heads(self.query(x))
        key = self.split_heads(self.key(x))
        value = self.split_heads(self.value(x))

        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        probs = nn.functional.softmax(scores, dim=-1)
        probs = self.dropout(probs)

        context = torch.matmul(probs, value)
        context = context.permute(0, 2, 1, 3).contiguous()
        return self.output(context.view(x.size(0), x.size(1), -1))


class FeedForward(nn.Module):
    """Two projections with a GELU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.inner)
        self.fc2 = nn.Linear(config.inner, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        return self.fc2(x)


class Layer(nn.Module):
    """A post-norm encoder layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.output_norm = LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        attended = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.output_norm(attended + self.dropout(self.feed_forward(attended)))


class Bert(nn.Module):
    """Token ids (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.width, padding_idx=PADDING)
        self.positions = nn.Embedding(config.length, config.width)
        self.norm = LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.decoder = nn.Linear(config.width, config.vocabulary)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.size(1)]
        x = self.dropout(self.norm(x))
        mask = None
        if attention_mask is not None:
            mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return self.decoder(x)


def batch(config: Config, generator: torch.Generator, size: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Counting sequences of random start, stride and length, a sixth of them hidden.

    Returns the ids with gaps, the attention mask (1 for what is not padding) and the labels; each (size, length).
    """
    start, stride = torch.randint(config.numbers, (2, size, 1), generator=generator)
    lengths = torch.randint(config.length // 2, config.length + 1, (size, 1), generator=generator)
    position = torch.arange(config.length)
    there = position < lengths
    ids = torch.where(there, FIRST_NUMBER + (start + stride * position) % config.numbers, PADDING)
    hidden = there & (torch.rand(size, config.length, generator=generator, dtype=torch.float32) < 1 / 6)
    return ids.masked_fill(hidden, MASK), there.long(), ids.masked_fill(~hidden, IGNORED)


def train(model: Bert, steps: int, seed: int) -> list[float]:
    """Train for `steps` batches drawn with `seed`. Returns the loss of each, in nats a hidden number."""
    torch.manual_seed(seed)  # dropout
    generator = torch.Generator().manual_seed(seed)  # batches
    device = next(model.parameters()).device
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses = []
    for _ in range(steps):
        ids, mask, labels = (t.to(device) for t in batch(model.config, generator))
        loss = criterion(model(ids, mask).view(-1, model.config.vocabulary), labels.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimize", action="store_true", help="swap the hand-written layers for fused ones first")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Bert(Config()).to(device)
    if options.optimize:
        import autofuse

        ids, mask, _ = batch(model.config, torch.Generator().manual_seed(options.seed))
        autofuse.optimize(model, (ids.to(device), mask.to(device)))
        print(autofuse.report(model))
    losses = train(model, options.steps, options.seed)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps on {device}")


if __name__ == "__main__":
    main()
