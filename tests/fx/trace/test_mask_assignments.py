"""Scores that are masked by an assignment: what the graph records, and when it is not valid."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse

D = 8


class Attention(nn.Module):
    """Attention of one head. Subclasses mask the scores in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(D)
        self.apply_mask(scores, mask)
        return torch.softmax(scores, dim=-1) @ self.value(x)

    def apply_mask(self, scores: Tensor, mask: Tensor) -> None:
        scores[mask] = float("-inf")


class AfterEllipsis(Attention):
    def apply_mask(self, scores: Tensor, mask: Tensor) -> None:
        scores[..., mask] = -math.inf


class AfterSlice(Attention):
    def apply_mask(self, scores: Tensor, mask: Tensor) -> None:
        scores[:, mask] = float("-inf")


def random_mask(*sizes: int) -> Tensor:
    mask = torch.rand(*sizes, generator=torch.Generator().manual_seed(3)) > 0.6
    return mask & ~torch.eye(sizes[-1], dtype=torch.bool)


def results(module: nn.Module, x: Tensor, mask: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    result = module(x, mask)
    module.zero_grad()
    result.square().sum().backward()
    return [result, x.grad, *(p.grad for p in module.parameters())]


CASES = {"whole": (Attention, (2, 5, 5)), "ellipsis": (AfterEllipsis, (5, 5)), "slice": (AfterSlice, (5, 5))}


@pytest.mark.parametrize(("cls", "sizes"), CASES.values(), ids=CASES)
def test_an_assignment_by_a_mask_is_fused_exactly(cls: type[Attention], sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, fused = cls().double(), cls().double()
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, D, dtype=torch.float64)
    autofuse.optimize(fused, (x, random_mask(*sizes)), tune=False)
    assert [s.rule for s in autofuse.report(fused).sites if s.status == "fused"] == ["AF101"]
    for n in (5, 3):
        x, mask = torch.randn(2, n, D, dtype=torch.float64), random_mask(*sizes[:-2], n, n)
        for actual, expected in zip(results(fused, x, mask), results(plain, x, mask), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_mask_of_another_size_raises_as_before_and_is_not_broadcast() -> None:
    module, x = Attention(), torch.randn(2, 5, D)
    autofuse.optimize(module, (x, random_mask(2, 5, 5)), tune=False)
    with pytest.raises(IndexError, match="does not match"):
        module(x, random_mask(1, 5, 5))
    with pytest.raises(IndexError, match="does not match"):
        module(x, random_mask(2, 3, 3))


def test_a_mask_of_the_leading_dimensions_stays_unchanged() -> None:
    plain, fused = Attention(), Attention()
    fused.load_state_dict(plain.state_dict())
    x, mask = torch.randn(5, 5, D), random_mask(5, 5)  # as many batches and rows as there are keys
    autofuse.optimize(fused, (x, mask), tune=False)
    assert not [s for s in autofuse.report(fused).sites if s.status == "fused"]
    torch.testing.assert_close(fused(x, mask), plain(x, mask), equal_nan=True)


def test_an_index_of_integers_does_not_count_as_a_mask() -> None:
    plain, fused = AfterEllipsis(), AfterEllipsis()
    fused.load_state_dict(plain.state_dict())
    x, mask = torch.randn(2, 5, D), torch.tensor([1, 3])
    autofuse.optimize(fused, (x, mask), tune=False)
    assert not [s for s in autofuse.report(fused).sites if s.status == "fused"]
    torch.testing.assert_close(fused(x, mask), plain(x, mask))
