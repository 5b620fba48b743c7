"""Losses after `optimize`, on targets that the example did not contain: the same values, or the same kind of error."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse

N, C = 6, 200
Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "indexed": lambda x, y: -F.log_softmax(x, -1)[torch.arange(y.shape[0]), y].mean(),
    "indexed by a range": lambda x, y: -x.log_softmax(1)[range(N), y].sum(),
    "indexed, of rows": lambda x, y: -F.log_softmax(x, -1)[torch.arange(N), y],
    "gathered": lambda x, y: -F.log_softmax(x, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1),
    "gathered, averaged": lambda x, y: -F.log_softmax(x, 1).gather(1, y.unsqueeze(1)).mean(),
    "gathered, unsqueezed by None": lambda x, y: -F.log_softmax(x, 1).gather(1, y[:, None])[:, 0].sum(),
    "taken along": lambda x, y: -torch.take_along_dim(F.log_softmax(x, 1), y.unsqueeze(1), 1).mean(),
    "normaliser less picked": lambda x, y: (x.logsumexp(1) - x.gather(1, y.unsqueeze(1)).squeeze(1)).mean(),
    "normaliser less indexed": lambda x, y: (torch.logsumexp(x, 1) - x[torch.arange(N), y]).mean(),
    "chosen by one-hot": lambda x, y: -(F.log_softmax(x, 1) * F.one_hot(y, C)).sum(1).mean(),
    "scattered": lambda x, y: (
        -(F.log_softmax(x, 1) * torch.zeros_like(x).scatter(1, y.unsqueeze(1), 1.0)).sum(1).mean()
    ),
    "smoothed": lambda x, y: (
        0.9 * -F.log_softmax(x, 1).gather(1, y.unsqueeze(1)).squeeze(1).mean() - 0.1 * F.log_softmax(x, 1).mean()
    ),
    "smoothed one-hot": lambda x, y: (
        -((F.one_hot(y, C).to(x.dtype) * 0.9 + 0.1 / C) * F.log_softmax(x, -1)).sum(-1).mean()
    ),
    "masked by hand": lambda x, y: (
        -(F.log_softmax(x, -1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (y != -100)).sum()
        / (y != -100).sum()
    ),
    "indexed, masked by hand": lambda x, y: -(F.log_softmax(x, -1)[torch.arange(N), y] * (y >= 0)).sum(),
    "selected by hand": lambda x, y: F.nll_loss(F.log_softmax(x[y >= 0], 1), y[y >= 0]),
    "logarithms of probabilities": lambda x, y: F.nll_loss(torch.log(torch.softmax(x, 1)), y),
    "logarithms of probabilities, gathered": lambda x, y: -x.softmax(1).log().gather(1, y[:, None]).squeeze(1),
    "torch's own steps": lambda x, y: F.nll_loss(F.log_softmax(x, 1), y),
    "torch's own, ignoring 3": lambda x, y: F.nll_loss(F.log_softmax(x, 1), y, ignore_index=3),
}
FIRST = torch.arange(N)
TARGETS: dict[str, Tensor] = {
    "as in the example": FIRST,
    "-100": torch.tensor([0, 1, -100, 3, 4, 5]),
    "-1": torch.tensor([0, 1, -1, 3, 4, 5]),
    "the last class": torch.full((N,), C - 1),
    "the first class from the end": torch.full((N,), -C),
    "beyond the last class": torch.tensor([0, 1, C, 3, 4, 5]),
    "beyond the first class": torch.tensor([0, 1, -C - 1, 3, 4, 5]),
    "beyond by the ignored": torch.tensor([0, 1, -C - 100, 3, 4, 5]),
    "all ignored": torch.full((N,), -100),
    "int32": FIRST.int(),
    "int32, -1": torch.tensor([0, 1, -1, 3, 4, 5], dtype=torch.int32),
    "int16": FIRST.short(),
    "bytes": FIRST.byte(),
    "booleans": torch.ones(N, dtype=torch.bool),
    "numbers": FIRST.double(),
    "too few": FIRST[:4],
    "one": FIRST[:1],
}


def model(name: str, head: bool) -> nn.Module:
    loss = LOSSES[name]

    class Plain(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(x, y)

    class WithHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, C)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.head(x[:, :8]), y)

    torch.manual_seed(0)
    return (WithHead if head else Plain)().double()


Outcome = tuple[Tensor, ...] | type[Exception]


def outcome(module: nn.Module, x: Tensor, y: Tensor) -> Outcome:
    x = x.clone().requires_grad_()
    module.zero_grad()
    try:
        loss = module(x, y)
        loss.sum().backward()
    except Exception as error:
        return type(error)
    return loss.detach(), x.grad, *(p.grad for p in module.parameters())  # type: ignore[return-value]


def assert_same(what: str, wanted: Outcome, found: Outcome) -> None:
    if isinstance(wanted, type) or isinstance(found, type):
        assert wanted is found, f"{what}: {found} in place of {wanted}"
        return
    for ours, right in zip(found, wanted, strict=True):
        assert torch.allclose(ours, right, rtol=1e-9, atol=1e-12, equal_nan=True), what


@pytest.mark.parametrize("lazy", [False, True], ids=["example", "lazy"])
@pytest.mark.parametrize("head", [False, True], ids=["", "of a linear layer"])
@pytest.mark.parametrize("name", LOSSES)
def test_later_targets_give_the_same_values_or_the_same_kind_of_error(name: str, head: bool, lazy: bool) -> None:
    original = model(name, head)
    fused = copy.deepcopy(original)
    x = torch.randn(N, C, dtype=torch.float64)
    autofuse.optimize(fused, None if lazy else (x, FIRST), tune=False)
    fused(x, FIRST)
    for what, y in TARGETS.items():
        wanted, found = outcome(original, x, y), outcome(fused, x, y)
        assert_same(what, wanted, found)
    wanted, found = outcome(original, 1e3 * x, FIRST), outcome(fused, 1e3 * x, FIRST)
    assert_same("large logits", wanted, found)
