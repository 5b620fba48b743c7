"""A realistic training program: images of changing sizes, a transformer over patches, and state everywhere.

It mixes images with a numpy generator, skips blocks with generators of its own, keeps position biases in a dict, logs
by hooks, thaws layers, accumulates gradients, recomputes blocks, and changes its configuration between epochs.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import math
import random
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

EPOCHS = 5
TEMPERATURE: contextvars.ContextVar[float] = contextvars.ContextVar("temperature", default=1.0)
NORMS: dict[str, deque[float]] = {}
LOG: list[tuple[int, str, float]] = []


class Pooling(enum.Enum):
    """How patches become one vector."""

    MEAN = "mean"
    FIRST = "first"


@dataclasses.dataclass(slots=True)
class Config:
    """The configuration, which changes between epochs."""

    width: int = 16
    heads: int = 2
    classes: int = 5
    skip: float = 0.0
    smoothing: float = 0.0
    recompute: bool = False
    pooling: Pooling = Pooling.MEAN
    activation: Callable[[Tensor], Tensor] = torch.relu

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.width // self.heads


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh formula."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class Norm(nn.Module):
    """Layer norm by hand."""

    eps = 1e-5

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Attention(nn.Module):
    """Attention with a bias of relative positions, which is kept for each number of patches."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv, self.out = nn.Linear(cfg.width, 3 * cfg.width), nn.Linear(cfg.width, cfg.width)
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.5, cfg.heads))
        self.distances: dict[int, Tensor] = {}

    @cached_property
    def scale(self) -> float:
        """The scale of the scores."""
        return float(self.cfg.head_dim) ** -0.5

    def bias(self, n: int) -> Tensor:
        """The position bias of n patches."""
        if n not in self.distances:
            i = torch.arange(n)
            self.distances[n] = (i[:, None] - i).abs().double()
        return -self.slopes[:, None, None] * self.distances[n]

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.cfg.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (self.scale / TEMPERATURE.get()) + self.bias(n)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width))


class Block(nn.Module):
    """A prenorm block with stochastic depth."""

    def __init__(self, cfg: Config, number: int) -> None:
        super().__init__()
        self.cfg, self.rng = cfg, random.Random(number)
        self.norm1, self.norm2 = Norm(cfg.width), Norm(cfg.width)
        self.attention = Attention(cfg)
        self.up, self.down = nn.Linear(cfg.width, 32), nn.Linear(32, cfg.width)
        self.scale1 = nn.Parameter(torch.full((cfg.width,), 0.5))

    def mlp(self, x: Tensor) -> Tensor:
        """The layer after attention."""
        return self.down(self.cfg.activation(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.rng.random() < self.cfg.skip:
            return x
        x = x + self.scale1 * self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """The classifier."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.patches = nn.Conv2d(3, cfg.width, 2, 2)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(2))
        self.norm, self.head = Norm(cfg.width), nn.Linear(cfg.width, cfg.classes)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            recompute = self.cfg.recompute and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        if self.training:
            self.seen += images.shape[0]
        x = self.norm(x)
        return self.head(x.mean(1) if self.cfg.pooling is Pooling.MEAN else x[:, 0])


class SoftTargets(nn.Module):
    """Cross entropy of mixed targets, with label smoothing."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg

    def forward(self, logits: Tensor, target: Tensor, other: Tensor, share: float) -> Tensor:
        logs = torch.log_softmax(logits, -1)
        mixed = share * logs.gather(1, target[:, None]) + (1 - share) * logs.gather(1, other[:, None])
        return -((1 - self.cfg.smoothing) * mixed.squeeze(1) + self.cfg.smoothing * logs.mean(1)).mean()


def configure(epoch: int, model: Model) -> None:
    """Makes the changes for an epoch."""
    cfg = model.cfg
    cfg.skip = (0.0, 0.3, 0.0, 0.2, 0.0)[epoch]
    cfg.smoothing = 0.1 * (epoch % 2)
    cfg.recompute = epoch == 2
    cfg.pooling = Pooling.FIRST if epoch >= 3 else Pooling.MEAN
    cfg.activation = gelu if epoch % 2 else F.silu
    TEMPERATURE.set(1.0 + 0.5 * epoch)
    model.patches.requires_grad_(epoch > 0)
    if epoch == 3:
        Norm.eps = 1e-3
    if epoch == 4:
        model.blocks[0].attention.scale = 0.9


def log_norm(name: str) -> Callable[..., None]:
    """A hook that keeps the last norms of a module's results."""

    def hook(module: nn.Module, args: Any, result: Tensor) -> None:
        NORMS.setdefault(name, deque(maxlen=3)).append(float(result.detach().norm()))

    return hook


def run(prepare: Callable[[nn.Module, tuple[Any, ...]], nn.Module], steps: int = 40) -> dict[str, Any]:
    """Runs the program with so many steps for each epoch, and returns its visible state."""
    torch.manual_seed(0)
    rng = np.random.default_rng(3)
    cfg = Config()
    model, loss_of = Model(cfg).double(), SoftTargets(cfg)
    prepare(model, (torch.zeros(2, 3, 8, 8, dtype=torch.float64),))
    prepare(loss_of, (torch.zeros(2, 5, dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([1, 2]), 0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(EPOCHS):
        configure(epoch, model)
        hook = model.blocks[epoch % 2].register_forward_hook(log_norm(f"block {epoch % 2}"))
        for step in range(steps):
            images, target, other, share = batch_of(rng, 4 + 2 * (epoch % 3))
            mixed = share * images + (1 - share) * images.flip(0)
            loss = loss_of(model(mixed.contiguous(memory_format=torch.channels_last)), target, other, share)
            (loss / 2).backward()
            losses.append(loss.item())
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        hook.remove()
        LOG.append((epoch, "accuracy", accuracy(model, rng)))
    return {"losses": losses, "log": LOG, "norms": {k: list(v) for k, v in NORMS.items()}, "model": model.state_dict(),
            "biases": [sorted(b.attention.distances) for b in model.blocks]}  # fmt: skip


def batch_of(rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Images of that size, two targets of each, and the share of the first."""
    images = torch.from_numpy(rng.standard_normal((4, 3, size, size)))
    target = torch.from_numpy(rng.integers(0, 5, 4))
    return images + target[:, None, None, None] * 0.1, target, target.flip(0), float(rng.beta(1.0, 1.0))


@torch.no_grad()
def accuracy(model: nn.Module, rng: np.random.Generator) -> float:
    """The share of the images whose class is found."""
    model.eval()
    images, target, _, _ = batch_of(rng, 6)
    found = model(images).argmax(1)
    model.train()
    return float((found == target).double().mean())
