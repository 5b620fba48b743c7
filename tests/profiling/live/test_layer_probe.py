"""Layers with twice the batch, and inputs that cannot be doubled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.profiling.live.layer_probe import growth_by_layer
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.probe import NotApplicable


class Wide(nn.Module):
    """Work that grows with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 512**0.5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = x @ self.weight
        return x


class Fixed(nn.Module):
    """Work that does not grow with the batch: it uses weights only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(400, 400))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight @ self.weight @ self.weight).mean()


def test_layers_that_grow_with_the_batch_are_distinguished_from_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Wide(), Fixed())
    x = torch.randn(256, 512)

    def run(inputs: object) -> None:
        model(inputs).square().mean().backward()
        model.zero_grad()

    found = growth_by_layer(run, x, ModuleNames({"": model}), torch.device("cpu"), seconds=1.0)
    assert set(found) >= {"", "0", "1"}
    assert found["0"].ratio > found["1"].ratio
    assert found["0"].interval.low <= found["0"].ratio <= found["0"].interval.high


def test_inputs_without_a_batch_are_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(NotApplicable):
        growth_by_layer(
            lambda inputs: None, (torch.ones(2, 2), torch.ones(3, 2)), ModuleNames({"": model}), torch.device("cpu")
        )
