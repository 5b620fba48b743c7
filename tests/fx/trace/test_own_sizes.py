"""Sizes of a module's own tensors and of its children's results are guarded where forward uses them as numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autofuse


class Attention(nn.Module):
    """Attention whose scale is a size of something that the module holds."""

    def __init__(self, scale: Callable[[Attention, Tensor], float]) -> None:
        super().__init__()
        self.wide, self.table, self.scale = nn.Linear(8, 16), nn.Parameter(torch.randn(4, 8)), scale
        self.register_buffer("mask", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * self.scale(self, x), -1) @ x


def _of_a_child_without_gradients(m: Attention, x: Tensor) -> float:
    with torch.no_grad():
        return m.wide(x + 0).shape[-1] ** -0.5  # type: ignore[no-any-return]


SCALES: dict[str, Callable[[Attention, Tensor], float]] = {
    "a parameter": lambda m, x: m.table.shape[0] / 16,
    "a buffer": lambda m, x: len(m.get_buffer("mask")) / 16,
    "a child's weight": lambda m, x: m.wide.weight.size(0) ** -0.5,
    "a child's result": lambda m, x: m.wide(x).shape[-1] ** -0.5,
    "a child's result under no_grad": _of_a_child_without_gradients,
}


def grow(m: Attention) -> None:
    """Puts larger tensors and a wider child in the places of the old ones."""
    m.wide, m.table, m.mask = nn.Linear(8, 64), nn.Parameter(torch.randn(9, 8)), torch.zeros(9)


@pytest.mark.parametrize("scale", SCALES)
def test_a_larger_tensor_or_child_is_noticed(scale: str) -> None:
    torch.manual_seed(0)
    plain, x = Attention(SCALES[scale]), torch.randn(2, 5, 8)
    model = autofuse.optimize(copy.deepcopy(plain), x, tune=False)
    assert [s.rule for s in autofuse.report(model).with_status("fused")] == ["AF101"]
    torch.testing.assert_close(model(x), plain(x))
    grow(plain)
    grow(model)
    torch.testing.assert_close(model(x), plain(x))


def test_new_numbers_in_the_same_shape_keep_it_fused() -> None:
    model, x = Attention(SCALES["a parameter"]), torch.randn(2, 5, 8)
    autofuse.optimize(model, x, tune=False)
    with torch.no_grad():
        model.table.mul_(2)
    model.wide = nn.Linear(8, 16)
    model(x)
    assert not autofuse.report(model).fallbacks
