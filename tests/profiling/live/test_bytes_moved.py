"""Bytes of single operators, compared with counts by hand: float32 takes 4 bytes, so A and B take 96 each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.results.profile import OUTSIDE, Work


def moved(run: Callable[[], object]) -> tuple[int, int]:
    """Operators and bytes."""
    with torch.no_grad(), Counting(ModuleNames({})) as counting:
        run()
    work = counting.works().get((OUTSIDE, "forward"), Work())
    return work.operators, work.bytes


A, B = torch.randn(6, 4), torch.randn(6, 4)
ROW = torch.randn(4)
IDS = torch.tensor([1, 2, 1])


@pytest.mark.parametrize(
    ("run", "operators", "bytes"),
    [
        (lambda: A.view(4, 6).t().unsqueeze(0).expand(3, 6, 4)[0, 1:], 0, 0),
        (lambda: torch.empty(5).detach(), 0, 0),
        (lambda: A.sum().item(), 1, 96 + 4),
        (lambda: A + B, 1, 3 * 96),
        (lambda: A + ROW.expand(6, 4), 1, 2 * 96 + 16),
        (lambda: A * A, 1, 2 * 96),
        (lambda: A.clone().add_(B), 2, 2 * 96 + 3 * 96),
        (lambda: torch.add(A, B, out=torch.empty(6, 4)), 1, 3 * 96),
        (lambda: torch.empty(6, 4).copy_(A), 1, 2 * 96),
        (lambda: torch.zeros(6, 4), 1, 96),
        (lambda: torch.zeros_like(A), 1, 96),
        (lambda: A[:, :2].contiguous(), 1, 2 * 48),
        (lambda: A.unfold(0, 3, 1).sum(), 1, 96 + 4),  # its windows overlap
        (lambda: nn.functional.embedding(IDS, torch.ones(100, 4)), 2, 1600 + 24 + 2 * 48),
        (lambda: A.double(), 1, 96 + 192),
        (lambda: torch._foreach_mul_([A.clone(), B.clone()], 2.0), 3, 4 * 96 + 4 * 96),
    ],
)
def test_bytes_are_the_distinct_elements_read_and_written(
    run: Callable[[], object], operators: int, bytes: int
) -> None:
    assert moved(run) == (operators, bytes)
