"""Caches that a forward fills: each trace starts from the state of the user's module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import assert_same, fused_rules


class Cached(nn.Module):
    """Attention that caches its bias by device in evaluation and drops it in training, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6))
        self.register_buffer("index", torch.arange(36).view(6, 6) % 6)
        self.biases: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Cached:
        super().train(mode)
        if mode:
            self.biases = {}
        return self

    def bias(self, device: torch.device) -> Tensor:
        if self.training:
            return self.table[self.index]
        if str(device) not in self.biases:
            self.biases[str(device)] = self.table[self.index]
        return self.biases[str(device)]

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(-2, -1) * 0.5 + self.bias(x.device)
        return scores.softmax(dim=-1) @ x


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = Cached(), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.inner(x))  # type: ignore[no-any-return]


def test_a_cache_that_a_trace_fills_is_restored() -> None:
    plain = Parent()
    x = torch.randn(2, 6, 4)
    for verify in (True, False):
        fused = autofuse.optimize(Parent(), x, verify=verify)
        fused.load_state_dict(plain.state_dict())
        assert "AF101" in fused_rules(fused)
        assert fused.inner.biases == {}
        for training in (False, True, False, False, True):
            with torch.no_grad():
                expected = plain.train(training)(x)
                for _ in range(3):  # filled at the first call, read at the others
                    torch.testing.assert_close(fused.train(training)(x), expected)
        assert_same(plain.train(), fused.train(), x)


def test_a_reason_names_the_line_where_the_cache_is_read() -> None:
    fused = autofuse.optimize(Parent(), torch.randn(2, 6, 4))
    site = next(s for s in autofuse.report(fused).sites if "biases" in s.reason)
    assert site.file == __file__ and site.status == "declined"
