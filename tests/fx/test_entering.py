"""Small children of the user's own, read in place of their call."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import autofuse


class Gelu(nn.Module):
    def __init__(self, half: float = 0.5) -> None:
        super().__init__()
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        return self.half * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Remembers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach()
        return nn.functional.gelu(x)


class Mlp(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 8), act, nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


def optimized(act: nn.Module) -> tuple[Mlp, Mlp, Tensor]:
    """A module, its fused copy, and an input."""
    torch.manual_seed(0)
    original, x = Mlp(act), torch.randn(3, 6)
    return original, autofuse.optimize(copy.deepcopy(original), (x,)), x


def fused(module: nn.Module) -> set[tuple[str, str]]:
    return {(s.rule, s.module) for s in autofuse.report(module).sites if s.status == "fused"}


def test_the_mlp_around_an_activation_of_ones_own_is_fused_and_so_is_the_activation() -> None:
    original, module, x = optimized(Gelu())
    assert {("AF304", ""), ("AF301", "act")} <= fused(module)
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


def test_a_hook_on_the_child_still_runs() -> None:
    _, module, x = optimized(Gelu())
    seen: list[Tensor] = []
    module.act.register_forward_hook(lambda m, args, out: seen.append(out))
    module(x)
    assert len(seen) == 1


def test_what_the_child_took_for_granted_is_guarded() -> None:
    original, module, x = optimized(Gelu())
    for m in (original, module):
        m.act.half = 0.25  # type: ignore[assignment]
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


def test_a_child_that_is_exchanged_is_called() -> None:
    original, module, x = optimized(Gelu())
    original.act, module.act = nn.Tanh(), nn.Tanh()
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("act", [Remembers(), nn.Sequential(Gelu(), nn.BatchNorm1d(8)), nn.PReLU()])
def test_a_child_that_does_more_stays_a_call(act: nn.Module) -> None:
    original, module, x = optimized(act)
    assert ("AF304", "") not in fused(module)
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)
