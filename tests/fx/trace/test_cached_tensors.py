"""A rewritten forward makes what a function with a cache keeps anew, unless somebody would find that out."""

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
    """Attention under a mask that a cache keeps."""

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.mT * 0.25).masked_fill(~mask_of(x.shape[1]), float("-inf"))
        return torch.softmax(scores, -1) @ x


@pytest.mark.parametrize("held", [False, True], ids=["nobody else", "the program"])
def test_a_cache_is_emptied_where_nobody_else_holds_its_tensors(held: bool) -> None:
    mask_of.cache_clear()
    kept = [mask_of(4)] if held else [mask_of(4).clone()]
    x = torch.randn(2, 4, 8)
    expected = Attend()(x)
    model = autofuse.optimize(Attend(), (x,), tune=False)
    torch.testing.assert_close(model(x), expected)
    assert bool(fused_rules(model)) is not held
    assert (mask_of(4) is kept[0]) is held
    assert not held or "held elsewhere" in str(autofuse.report(model))
