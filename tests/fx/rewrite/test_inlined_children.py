"""Small user-defined children are inlined."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import assert_same, fused_rules


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


def test_an_mlp_with_a_user_defined_activation_is_fused_and_so_is_the_activation() -> None:
    original, module, x = optimized(Gelu())
    assert {("AF304", ""), ("AF301", "act")} <= fused(module)
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


def test_a_hook_on_the_child_still_runs() -> None:
    _, module, x = optimized(Gelu())
    seen: list[Tensor] = []
    module.act.register_forward_hook(lambda m, args, out: seen.append(out))
    module(x)
    assert len(seen) == 1


def test_attributes_that_the_child_reads_are_guarded() -> None:
    original, module, x = optimized(Gelu())
    for m in (original, module):
        m.act.half = 0.25  # type: ignore[assignment]
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


def test_a_replaced_child_is_called() -> None:
    original, module, x = optimized(Gelu())
    original.act, module.act = nn.Tanh(), nn.Tanh()
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("act", [Remembers(), nn.Sequential(Gelu(), nn.BatchNorm1d(8)), nn.PReLU()])
def test_a_child_with_other_operations_stays_a_call(act: nn.Module) -> None:
    original, module, x = optimized(act)
    assert ("AF304", "") not in fused(module)
    torch.testing.assert_close(module(x), original(x), atol=1e-6, rtol=1e-5)


class Offsets(nn.Module):
    """Adds to scores an MLP of position offsets, as timm's RelPosMlp does."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2, 8), nn.Softsign(), nn.Linear(8, 2))
        self.register_buffer("offsets", torch.randn(36, 2))

    def forward(self, scores: Tensor) -> Tensor:
        length = scores.shape[-1]
        bias = self.mlp(self.offsets).view(6, 6, -1).permute(2, 0, 1)[:, :length, :length]
        return scores + bias.unsqueeze(0)  # type: ignore[no-any-return]


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = Offsets()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.offsets(q @ k.transpose(-2, -1)).softmax(dim=-1) @ v  # type: ignore[no-any-return]


def test_a_child_that_adds_a_computed_bias_is_part_of_the_attention() -> None:
    given = tuple(torch.randn(3, 2, 6, 4) for _ in range(3))
    plain, seen = Biased(), list[int]()
    fused = autofuse.optimize(copy.deepcopy(plain), given)
    fused.offsets.mlp[0].register_forward_hook(lambda *_: seen.append(1))
    assert fused_rules(fused) == {"AF101"}
    for training in (False, True):
        assert_same(plain.train(training), fused.train(training), *given)
        assert_same(plain, fused, *(t[:, :, :5] for t in given))
    assert len(seen) == 4  # the layers inside are called as before
    for watched, sign in ((fused.offsets.mlp, 2), (fused.offsets, 3)):  # a watched child is called
        watched.register_forward_hook(lambda *_, sign=sign: seen.append(sign))
        fused(*given)
        assert seen[-1] == sign
