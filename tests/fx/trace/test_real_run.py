"""A parent is fused although a child of it cannot run on fake tensors."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import Attention, assert_same, fused_rules


class Experts(nn.Module):
    """A mixture of experts. Each row goes to the expert that the router's numbers select."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.router, self.in_place = nn.Linear(16, 2), in_place
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        choice = self.router(rows).argmax(-1)
        order, counts = choice.argsort(stable=True), [int(n) for n in choice.bincount(minlength=2)]
        parts = [e(part) for e, part in zip(self.experts, rows[order].split(counts), strict=True)]
        result = torch.zeros_like(rows).index_copy(0, order, torch.cat(parts))
        if self.in_place:
            x.mul_(1.0)
        return result.view_as(x)


class Block(nn.Module):
    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.attention, self.norm, self.experts = Attention(), nn.LayerNorm(16), experts

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        h = self.norm(x)
        return x + self.experts(h)


def test_the_code_around_a_mixture_of_experts_is_fused() -> None:
    plain, x = Block(Experts()), torch.randn(2, 5, 16)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert fused_rules(model) == {"AF101", "AF203"}
    for length in (5, 3):
        assert_same(plain, model, torch.randn(2, length, 16))


def test_it_is_fused_at_the_first_call_without_drawing_random_numbers() -> None:
    plain, x = Block(Experts()), torch.randn(2, 5, 16)
    model = autofuse.optimize(copy.deepcopy(plain))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model(x)
    assert torch.equal(torch.rand(2), expected)
    assert fused_rules(model) == {"AF101", "AF203"}
    assert_same(plain, model, x)


def test_a_child_that_writes_to_its_argument_is_not_run_on_random_numbers() -> None:
    plain, x = Block(Experts(in_place=True)), torch.randn(2, 5, 16)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert fused_rules(model) == {"AF101"}
    assert_same(plain, model, x)
