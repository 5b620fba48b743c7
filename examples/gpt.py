"""A character-level GPT that learns to add, its layers written by hand.

Run it, or look at what would change:

    python examples/gpt.py                  # a few seconds on a CPU; uses a GPU if there is one
    python examples/gpt.py --optimize       # the same, with the layers swapped for fused ones
    autofuse rewrite --diff examples/gpt.py # the same swap, in this file
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz-"


@dataclass(frozen=True)
class Config:
    """Sizes of the model. The defaults train in seconds on a CPU."""

    vocabulary: int = len(ALPHABET)
    length: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2
    dropout: float = 0.1


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + self.eps) * self.weight + self.bias


class CausalAttention(nn.Module):
    """Every position attends to itself and to what came before it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        self.weights_dropout = nn.Dropout(config.dropout)
        self.register_buffer("past", torch.tril(torch.ones(config.length, config.length, dtype=torch.bool)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        head_dim = width // self.heads
        q = self.query(x).view(batch, length, self.heads, head_dim).transpose(1, 2)
        k = self.key(x).view(batch, length, self.heads, head_dim).transpose(1, 2)
        v = self.value(x).view(batch, length, self.heads, head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
        scores = scores.masked_fill(~self.past[:length, :length], float("-inf"))
        weights = self.weights_dropout(F.softmax(scores, dim=-1))
        y = weights @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class MLP(nn.Module):
    """Two projections with a tanh GELU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * h * h * h)))
        return self.down(h)


class Block(nn.Module):
    """A pre-norm residual block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.width)
        self.attention = CausalAttention(config)
        self.mlp_norm = LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x


class GPT(nn.Module):
    """Token ids (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def in_words(number: int) -> str:
    """41 -> "forty-one", for 0 to 99."""
    if number < 20:
        return ONES.split()[number]
    tens = TENS.split()[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{in_words(number % 10)}"


def sums() -> Tensor:
    """Every sum of two numbers below fifty, in words, shuffled, one a line: a text as token ids."""
    pairs = [(a, b) for a in range(50) for b in range(50)]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}\n" for a, b in (pairs[i] for i in order)]
    return torch.tensor([ALPHABET.index(c) for c in "".join(lines)])


def batch(text: Tensor, length: int, generator: torch.Generator, size: int = 16) -> tuple[Tensor, Tensor]:
    """Random windows of the text, and the same windows one character further on; each (size, length)."""
    starts = torch.randint(len(text) - length, (size,), generator=generator).tolist()
    windows = torch.stack([text[i : i + length + 1] for i in starts])
    return windows[:, :-1], windows[:, 1:]


def train(model: GPT, steps: int, seed: int) -> list[float]:
    """Train for `steps` batches drawn with `seed`. Returns the loss of each, in nats a character."""
    torch.manual_seed(seed)  # dropout
    generator = torch.Generator().manual_seed(seed)  # batches
    device = next(model.parameters()).device
    text = sums()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        inputs, targets = batch(text, model.config.length, generator)
        logits = model(inputs.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
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
    model = GPT(Config()).to(device)
    if options.optimize:
        import autofuse

        inputs, _ = batch(sums(), model.config.length, torch.Generator().manual_seed(options.seed))
        autofuse.optimize(model, inputs.to(device))
        print(autofuse.report(model))
    losses = train(model, options.steps, options.seed)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps on {device}")


if __name__ == "__main__":
    main()
