"""Guards do not keep objects of the program alive that the program has replaced."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn

import autofuse


class Settings:
    """A configuration object of a program."""

    scale = 0.5


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * self.settings.scale, -1) @ x


def test_a_replaced_object_is_freed_and_the_new_one_is_read() -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    autofuse.optimize(model, x, tune=False)
    assert autofuse.report(model).with_status("fused")
    model(x)
    old, model.settings = weakref.ref(model.settings), Settings()
    model.settings.scale = 2.0
    gc.collect()
    assert old() is None
    torch.testing.assert_close(model(x), torch.softmax(x @ x.transpose(-2, -1) * 2.0, -1) @ x)
