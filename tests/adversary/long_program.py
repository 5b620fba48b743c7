"""A realistic training program: 200 steps of a small language model, with state everywhere.

It has a global configuration that changes between epochs, logs in lists, caches in dicts, its own random generators,
auxiliary losses in a list argument, an average of the weights made by deepcopy, and a checkpoint from which a new model
continues. test_long_program.py executes this file again for each run, so runs share nothing.
"""

from __future__ import annotations

import copy
import io
import math
import random
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CFG = types.SimpleNamespace(
    width=16,
    heads=2,
    layers=2,
    words=23,
    length=8,
    temperature=1.0,
    dropout=0.0,
    smoothing=0.0,
    window=8,
    drop_path=0.0,
)
LOG: list[dict[str, Any]] = []
MASKS: dict[tuple[int, int], Tensor] = {}
CALLS: Counter[str] = Counter()
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "silu": lambda x: x * torch.sigmoid(x),
}
activation = "gelu"
PATHS = random.Random(5)
EPOCHS = 5


def mask_of(length: int, window: int) -> Tensor:
    """A causal mask of a window, cached."""
    if (length, window) not in MASKS:
        i = torch.arange(length)
        MASKS[length, window] = (i[:, None] < i) | (i[:, None] - i >= window)
    return MASKS[length, window]


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CFG.width))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Attention with a cache in a dict, a scheduled temperature, and dropout with its own generator."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.qkv = nn.Linear(CFG.width, 3 * CFG.width)
        self.out = nn.Linear(CFG.width, CFG.width)
        self.rng = torch.Generator().manual_seed(number)
        self.seen: list[float] = []

    def forward(self, x: Tensor, cache: dict[int, tuple[Tensor, Tensor]] | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, CFG.heads, width // CFG.heads).transpose(1, 2)
            for t in self.qkv(x).split(width, dim=-1)
        )
        if cache is not None:
            if self.number in cache:
                k, v = (torch.cat([old, new], 2) for old, new in zip(cache[self.number], (k, v), strict=True))
            cache[self.number] = (k, v)
        scores = q @ k.transpose(-2, -1) * (CFG.temperature / math.sqrt(q.shape[-1]))
        total = k.shape[2]
        scores = scores.masked_fill(mask_of(total, CFG.window)[total - length :], float("-inf"))
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        y = self.out(y)
        if self.training and CFG.dropout > 0:
            y = y * (torch.rand(y.shape, generator=self.rng, dtype=y.dtype) > CFG.dropout) / (1 - CFG.dropout)
        return y


class Mlp(nn.Module):
    """A gated layer whose activation is chosen by a global name."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(CFG.width, 32), nn.Linear(CFG.width, 32)
        self.down = nn.Linear(32, CFG.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ACTIVATIONS[activation](self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A prenorm block that is skipped at random, with a generator of the program."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention, self.mlp = Attention(number), Mlp()

    def forward(self, x: Tensor, losses: list[Tensor], cache: dict[int, tuple[Tensor, Tensor]] | None) -> Tensor:
        CALLS[type(self).__name__] += 1
        if self.training and PATHS.random() < CFG.drop_path:
            return x
        x = x + self.attention(self.norm1(x), cache)
        x = x + self.mlp(self.norm2(x))
        losses.append(x.pow(2).mean())
        return x


class Model(nn.Module):
    """The language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CFG.words, CFG.width)
        self.blocks = nn.ModuleList(Block(i) for i in range(CFG.layers))
        self.norm = Norm()
        self.steps = 0

    def forward(
        self, tokens: Tensor, losses: list[Tensor], cache: dict[int, tuple[Tensor, Tensor]] | None = None
    ) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, losses, cache)
        if self.training:
            self.steps += 1
        return F.linear(self.norm(x), self.embedding.weight)


class Loss(nn.Module):
    """Hand-written cross entropy that ignores padding; the configuration sets the label smoothing."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        kept = targets != -100
        logs = F.log_softmax(logits, -1)
        picked = logs.gather(-1, targets.masked_fill(~kept, 0).unsqueeze(-1)).squeeze(-1)
        each = (1 - CFG.smoothing) * picked + CFG.smoothing * logs.mean(-1)
        return -(each * kept).sum() / kept.sum()


def batch_of(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Tokens and targets; some are padded."""
    tokens = torch.from_numpy(rng.integers(0, CFG.words, (3, CFG.length + 1)))
    targets = tokens[:, 1:].clone()
    if rng.random() < 0.5:
        targets[0, -int(rng.integers(1, 4)) :] = -100
    return tokens[:, :-1], targets


@torch.no_grad()
def generate(model: nn.Module, many: int = 5) -> list[int]:
    """Generates words greedily, with a cache of keys and values."""
    model.eval()
    cache: dict[int, tuple[Tensor, Tensor]] = {}
    tokens = torch.tensor([[1, 2, 3]])
    words = []
    for _ in range(many):
        logits = model(tokens, [], cache)
        tokens = logits[:, -1:].argmax(-1)
        words.append(int(tokens))
    words.append(cache[0][0].shape[2])
    model.train()
    return words


def configure(epoch: int, model: Model) -> None:
    """Makes the changes for an epoch."""
    global activation
    CFG.temperature = 1.0 + 0.25 * epoch
    CFG.dropout = (0.0, 0.1, 0.3, 0.0, 0.2)[epoch]
    CFG.smoothing = 0.1 if epoch % 2 else 0.0
    CFG.window = 8 - epoch
    CFG.drop_path = 0.2 if epoch in (1, 3) else 0.0
    activation = "silu" if epoch >= 3 else "gelu"
    if epoch == 2:
        for module in model.modules():
            if type(module) is Norm:
                module.eps = 1e-4
    if epoch == 4:
        for module in model.modules():
            if type(module) is Attention:
                module.qkv.bias.requires_grad_(False)


def run(prepare: Callable[[nn.Module, tuple[Any, ...]], nn.Module], steps: int = 40) -> dict[str, Any]:
    """Runs the program, and returns all of its visible state. prepare: called with each new module and its inputs."""
    torch.manual_seed(0)
    rng = np.random.default_rng(7)
    example = torch.arange(CFG.length).view(1, -1) % CFG.words
    model = Model().double()
    prepare(model, (example, []))
    loss_of = Loss()
    prepare(loss_of, (torch.randn(1, 8, CFG.words, dtype=torch.float64), example))
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(EPOCHS):
        configure(epoch, model)
        for step in range(steps):
            tokens, targets = batch_of(rng)
            auxiliary: list[Tensor] = []
            loss = loss_of(model(tokens, auxiliary), targets) + 1e-3 * sum(auxiliary)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.05)
            if step % 10 == 0:
                LOG.append({"epoch": epoch, "loss": loss.item(), "auxiliary": len(auxiliary)})
        LOG.append({"epoch": epoch, "words": generate(model), "of the average": generate(average)})
        if epoch == 2:
            model, optimizer = resume(model, optimizer, prepare, example)
            configure(epoch, model)
    kept = {"model": model.state_dict(), "average": average.state_dict(), "steps": model.steps}
    return {"losses": losses, "log": LOG, "masks": MASKS, "calls": CALLS, "paths": PATHS, **kept}


def resume(
    model: Model, optimizer: torch.optim.Optimizer, prepare: Callable[..., nn.Module], example: Tensor
) -> tuple[Model, torch.optim.Optimizer]:
    """Saves a checkpoint of both, and loads it into a new model and a new optimizer."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": model.steps}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    new = Model().double()
    prepare(new, (example, []))
    new.load_state_dict(saved["model"])
    new.steps = saved["steps"]
    again = torch.optim.AdamW(new.parameters(), lr=3e-3)
    again.load_state_dict(saved["optimizer"])
    return new, again
