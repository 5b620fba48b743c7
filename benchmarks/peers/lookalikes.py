"""Small models that look like something with a fused kernel, and compute something else.

Whatever a way makes of them must compute what they compute. A way that turns one of them into the fused kernel is
silently wrong. `change` is called between two calls: results must follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH, WIDTH = 16, 8


class Attends(nn.Module):
    """Attention whose parts can be exchanged. As it is, it is the ordinary attention."""

    scale = WIDTH**-0.5
    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v


class OverHeads(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=1) @ v


class OverQueries(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), dim=-2) @ v


class ScaledAfter(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), dim=-1) * self.scale @ v


class MaskedAfter(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return weights.masked_fill(self.mask == 0, 0.0) @ v


class SeesTheNext(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(diagonal=1)
        return torch.softmax((q @ k.transpose(-2, -1) * self.scale).masked_fill(~seen, -torch.inf), dim=-1) @ v


class RowsOfNothing(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) * self.scale).masked_fill(self.mask.tril(-1) == 0, -1e9)
        return torch.softmax(scores, dim=-1) @ v


class WrittenWeights(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1).clone()
        weights[..., 0] = 0.0
        return weights @ v


class UsedWeights(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        return weights @ v + weights.max()


class Transposed(Attends):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1).transpose(-2, -1) @ v


class UnbiasedNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


class EpsilonOutside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, unbiased=False, keepdim=True) + 1e-2)


class VarianceForMeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-6)


class OtherGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.04 * x**3)))


class SigmoidGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class GateOfTheProduct(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate * up)


@dataclass
class _Settings:
    scale: float = WIDTH**-0.5


SETTINGS = _Settings()


class ReadsSettings(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * SETTINGS.scale, dim=-1) @ v


def _set_attribute(model: nn.Module) -> None:
    model.scale = 2.0  # type: ignore[assignment]


def _set_global(model: nn.Module) -> None:
    SETTINGS.scale = 2.0


def _add_hook(model: nn.Module) -> None:
    model.register_forward_hook(lambda module, args, output: 2 * output)


@dataclass(frozen=True)
class Lookalike:
    """A model, the number of its inputs, and what happens between two calls."""

    build: Callable[[], nn.Module]
    inputs: int = 3
    change: Callable[[nn.Module], None] | None = None

    def example(self) -> tuple[Tensor, ...]:
        """Inputs of two sequences with three heads."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            torch.randn(2, 3, LENGTH, WIDTH, generator=generator, requires_grad=True) for _ in range(self.inputs)
        )


LOOKALIKES: Mapping[str, Lookalike] = MappingProxyType(
    {
        "softmax over heads": Lookalike(OverHeads),
        "softmax over queries": Lookalike(OverQueries),
        "scaled after the softmax": Lookalike(ScaledAfter),
        "masked after the softmax": Lookalike(MaskedAfter),
        "a causal mask that sees one key more": Lookalike(SeesTheNext),
        "a row that sees nothing, with a finite fill": Lookalike(RowsOfNothing),
        "weights that are written before they are used": Lookalike(WrittenWeights),
        "weights that are used again": Lookalike(UsedWeights),
        "weights that are transposed": Lookalike(Transposed),
        "a norm by the unbiased variance": Lookalike(UnbiasedNorm, 1),
        "a norm with epsilon outside of the root": Lookalike(EpsilonOutside, 1),
        "an RMS norm by the variance": Lookalike(VarianceForMeanSquare, 1),
        "a GELU with another constant": Lookalike(OtherGelu, 1),
        "a GELU by a sigmoid": Lookalike(SigmoidGelu, 1),
        "a gate of the product": Lookalike(GateOfTheProduct, 1),
        "an attribute that changes between two calls": Lookalike(Attends, 3, _set_attribute),
        "a setting that changes between two calls": Lookalike(ReadsSettings, 3, _set_global),
        "a hook that is added between two calls": Lookalike(Attends, 3, _add_hook),
    }
)
