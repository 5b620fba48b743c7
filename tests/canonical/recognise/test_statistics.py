"""Means that are written as sums: divided by the size of the dimension, and by no other number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autofuse


class Norm(nn.Module):
    """An RMS norm whose mean is a sum divided by `width`."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim, dtype=torch.float64))
        self.dim = dim

    def width(self, x: Tensor) -> float:
        return x.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / self.width(x) + 1e-6) * self.weight


class OfModule(Norm):
    def width(self, x: Tensor) -> float:
        return self.dim


class OfWeight(Norm):
    def width(self, x: Tensor) -> float:
        return self.weight.numel()


class OfRows(Norm):
    def width(self, x: Tensor) -> float:
        return x.shape[-2]


class OfHalf(Norm):
    def width(self, x: Tensor) -> float:
        return x.shape[-1] // 2


def codes(module: nn.Module) -> list[str]:
    return [s.rule for s in autofuse.report(module).sites if s.status == "fused"]


@pytest.mark.parametrize("cls", [Norm, OfModule, OfWeight])
def test_a_sum_divided_by_the_width_is_a_mean(cls: type[Norm]) -> None:
    plain = cls()
    fused = cls()
    fused.load_state_dict(plain.state_dict())
    autofuse.optimize(fused, torch.randn(2, 3, 8, dtype=torch.float64), tune=False)
    assert codes(fused) == ["AF202"]
    x, y = (torch.randn(4, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y.data.copy_(x.data)
    for module, given in ((plain, x), (fused, y)):
        module(given).square().sum().backward()
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(fused.weight.grad, plain.weight.grad, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("cls", [OfRows, OfHalf])
def test_a_sum_divided_by_another_number_is_not_a_mean(cls: type[Norm]) -> None:
    module = autofuse.optimize(cls(), torch.randn(2, 8, 8, dtype=torch.float64), tune=False)
    assert codes(module) == []


def test_the_original_runs_if_the_guard_on_the_width_fails() -> None:
    plain, fused = OfModule(), OfModule()
    fused.load_state_dict(plain.state_dict())
    autofuse.optimize(fused, torch.randn(2, 3, 8, dtype=torch.float64), tune=False)
    column = torch.randn(2, 3, 1, dtype=torch.float64)  # broadcast to the weight's width
    torch.testing.assert_close(fused(column), plain(column), rtol=0, atol=0)
