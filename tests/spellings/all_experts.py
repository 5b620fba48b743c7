"""Experts that run on all tokens, of which sparse weights keep a few, and look-alikes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.spellings.experts import EXPERTS, INNER, WIDTH, Dropping, Routed


class _Stacked(nn.Module):
    """A router, and the matrices of all experts in one tensor each."""

    def __init__(self, k: int = 2) -> None:
        super().__init__()
        self.k, self.gate = k, nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.3)
        self.up_bias = nn.Parameter(torch.randn(EXPERTS, 2 * INNER) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.3)
        self.down_bias = nn.Parameter(torch.randn(EXPERTS, WIDTH) * 0.3)

    def scattered(self, x: Tensor) -> Tensor:
        values, chosen = self.gate(x).softmax(-1).topk(self.k, -1)
        return torch.zeros(*x.shape[:-1], EXPERTS, dtype=values.dtype).scatter_(-1, chosen, values)


class StackOfResults(Routed):
    """The results of all experts are stacked, and weighted by scattered weights."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k, Dropping)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        values, chosen = torch.topk(logits, self.k, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, values.softmax(-1))
        return torch.sum(torch.stack([e(x) for e in self.experts], dim=-2) * weights.unsqueeze(-1), dim=-2)


class WeightsOfOneHot(Routed):
    """The weights are those of a one-hot mask, summed over the choices."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k, Dropping)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        gates = (F.one_hot(chosen, EXPERTS).to(x.dtype) * weights.unsqueeze(-1)).sum(dim=-2)
        results = torch.stack([e(x) for e in self.experts], dim=-2)
        return torch.matmul(gates.unsqueeze(-2), results).squeeze(-2)


class EinsumOfAll(_Stacked):
    """einsum over all experts."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(torch.einsum("btd,edh->bteh", x, self.up)[..., :INNER])
        return torch.einsum("bted,bte->btd", torch.einsum("bteh,ehd->bted", h, self.down), self.scattered(x))


class GptOss(_Stacked):
    """gpt-oss of transformers in training: experts first, biases, interleaved halves."""

    def forward(self, hidden: Tensor) -> Tensor:
        batch, _, width = hidden.shape
        x = hidden.reshape(-1, width)
        top, chosen = torch.topk(self.gate(x), self.k, dim=-1)
        scores = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter_(1, chosen, F.softmax(top, dim=1))
        x = x.repeat(EXPERTS, 1).view(EXPERTS, -1, width)
        both = torch.bmm(x, self.up) + self.up_bias[..., None, :]
        gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(min=-7.0, max=7.0)
        out = torch.bmm((up + 1) * gate * torch.sigmoid(gate * 1.702), self.down) + self.down_bias[..., None, :]
        out = out.view(EXPERTS, batch, -1, width)
        return (out * scores.transpose(0, 1).view(EXPERTS, batch, -1)[..., None]).sum(dim=0)


class Llama4(_Stacked):
    """Llama 4 of transformers: the inputs are weighted."""

    def __init__(self, k: int = 1) -> None:
        super().__init__(k)

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.reshape(-1, WIDTH)
        logits = self.gate(x)
        top, chosen = torch.topk(logits, self.k, dim=1)
        scores = torch.sigmoid(torch.full_like(logits, float("-inf")).scatter_(1, chosen, top))
        routed = x.repeat(EXPERTS, 1) * scores.transpose(0, 1).reshape(-1, 1)
        gate, up = torch.bmm(routed.view(EXPERTS, -1, WIDTH), self.up).chunk(2, dim=-1)
        out = torch.bmm(up * F.silu(gate), self.down).view(-1, WIDTH)
        return out.reshape(EXPERTS, -1, WIDTH).sum(dim=0).view_as(hidden)


class AddedInPlace(Routed):
    """`out += gates[..., e].unsqueeze(-1) * expert(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        values, chosen = logits.topk(self.k, dim=-1)
        gates = torch.full_like(logits, float("-inf")).scatter(-1, chosen, values).softmax(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out += gates[..., e].unsqueeze(-1) * expert(x)
        return out


class ComparedWeights(Routed):
    """The weight of each expert is found by comparing the choices with its number."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + (weights * (chosen == e)).sum(-1, keepdim=True) * expert(x)
        return out


class SumOfGenerator(Routed):
    """`sum(...)` over a generator, with a mask of the probabilities."""

    def forward(self, x: Tensor) -> Any:
        probabilities = self.gate(x).softmax(-1)
        chosen = probabilities.topk(self.k, dim=-1).indices
        gates = probabilities * torch.zeros_like(probabilities).scatter(-1, chosen, 1.0)
        gates = gates / gates.sum(-1, keepdim=True)
        return sum(gates[..., e : e + 1] * self.experts[e](x) for e in range(EXPERTS))


class StackOfSequentials(Routed):
    """Each expert is a Sequential; the results are stacked last."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k)
        self.experts = nn.ModuleList([self.expert() for _ in range(EXPERTS)])

    def expert(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, INNER), nn.LayerNorm(INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        gates = torch.zeros(*x.shape[:-1], EXPERTS, dtype=weights.dtype).scatter(-1, chosen, weights)
        return torch.stack([e(x) for e in self.experts], -1).mul(gates.unsqueeze(-2)).sum(-1)


FOUND = (
    StackOfSequentials, StackOfResults, WeightsOfOneHot, EinsumOfAll, GptOss, Llama4, AddedInPlace, ComparedWeights,
    SumOfGenerator,
)  # fmt: skip


class DenseWeights(Routed):
    """Each token keeps all experts."""

    def forward(self, x: Tensor) -> Tensor:
        gates, out = self.gate(x).softmax(-1), torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + gates[..., e : e + 1] * expert(x)
        return out


class OtherColumn(Routed):
    """Each expert gets the weight of its neighbour."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        values, chosen = logits.topk(self.k, dim=-1)
        gates, out = torch.zeros_like(logits).scatter(-1, chosen, values), torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + gates[..., (e + 1) % EXPERTS].unsqueeze(-1) * expert(x)
        return out


class TokensMixed(Routed):
    """An expert reads other tokens."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(dim=1)) for _ in range(EXPERTS)]
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        gates = torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, chosen, weights)
        return (torch.stack([e(x) for e in self.experts], -2) * gates.unsqueeze(-1)).sum(-2)


class UsedTwice(_Stacked):
    """The results of all experts are used again."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(torch.einsum("btd,edh->bteh", x, self.up)[..., :INNER])
        y = torch.einsum("bteh,ehd->bted", h, self.down)
        return torch.einsum("bted,bte->btd", y, self.scattered(x)) + 0.01 * y.mean(2)


class NotZeroOfZero(_Stacked):
    """The weights come before a function that is not zero at zero."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("btd,edh->bteh", x, self.up)[..., :INNER]
        return torch.einsum("bteh,ehd->btd", torch.sigmoid(h * self.scattered(x).unsqueeze(-1)), self.down)


class WeightsPlusOne(_Stacked):
    """No weight is zero."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("btd,edh->bteh", x, self.up)[..., :WIDTH]
        return torch.einsum("bted,bte->btd", y, self.scattered(x) + 1.0)


class WeightsChanged(_Stacked):
    """The weights are written in place after the view of them was taken."""

    def forward(self, x: Tensor) -> Tensor:
        weights = self.scattered(x)
        column = weights.unsqueeze(-1)
        y = torch.einsum("btd,edh->bteh", x, self.up)[..., :WIDTH]
        weights.add_(0.5)
        return (y * column).sum(2)


class SoftmaxOverExperts(_Stacked):
    """The results of the experts of a token depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("btd,edh->bteh", x, self.up)[..., :WIDTH].softmax(2)
        return torch.einsum("bted,bte->btd", y, self.scattered(x))


class TokensSwapped(_Stacked):
    """The experts read the tokens of the transposed batch."""

    def forward(self, x: Tensor) -> Tensor:
        weights = self.scattered(x).transpose(0, 1)
        y = torch.einsum("btd,edh->tbeh", x.flip(1), self.up)[..., :WIDTH]
        return (y.roll(1, 0) * weights.unsqueeze(-1)).sum(2)


LOOK_ALIKES = (
    DenseWeights, OtherColumn, TokensMixed, UsedTwice, NotZeroOfZero, WeightsPlusOne, WeightsChanged,
    SoftmaxOverExperts, TokensSwapped,
)  # fmt: skip
