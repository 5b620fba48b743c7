"""A rewritten forward computes a cached tensor again, unless the program could notice."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules


@functools.cache
def mask_of(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Attend(nn.Module):
    """Attention with a cached mask."""

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.mT * 0.25).masked_fill(~mask_of(x.shape[1]), float("-inf"))
        return torch.softmax(scores, -1) @ x


@pytest.mark.parametrize("program_holds_it", [False, True], ids=["only the cache", "the program too"])
def test_a_cache_is_emptied_if_only_the_cache_holds_its_tensors(program_holds_it: bool) -> None:
    mask_of.cache_clear()
    masks = [mask_of(4)] if program_holds_it else [mask_of(4).clone()]
    x = torch.randn(2, 4, 8)
    expected = Attend()(x)
    model = autofuse.optimize(Attend(), (x,), tune=False)
    torch.testing.assert_close(model(x), expected)
    assert bool(fused_rules(model)) is not program_holds_it
    assert (mask_of(4) is masks[0]) is program_holds_it
    assert not program_holds_it or "held elsewhere" in str(autofuse.report(model))
