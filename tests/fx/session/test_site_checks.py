"""Forwards are checked on copies before they are installed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.site_checks import Checker, Verdict
from autofuse.fx.trace.tracer import ForwardArguments
from tests.fx.conftest import assert_same, fused_rules


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) * 0.3
        if bias is not None:
            scores = scores + bias
        return scores.softmax(dim=-1) @ v


class TwoWays(nn.Module):
    """One child, called without a bias for few tokens and with one for many, as RegionViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.bias = Attention(), nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        few = self.attention(x[:, ::2])
        many: Tensor = self.attention(x, self.bias)
        return few.mean(dim=1) + many.mean(dim=1)


def test_a_child_with_two_kinds_of_calls_is_checked_for_the_planned_kind() -> None:
    plain, x = TwoWays(), torch.randn(2, 6, 8)
    fused = autofuse.optimize(TwoWays(), x)
    fused.load_state_dict(plain.state_dict())
    assert fused_rules(fused) == {"AF101"} and not autofuse.report(fused).with_status("rolled-back")
    for training in (False, True):
        assert_same(plain.train(training), fused.train(training), x)


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


class Mlp(nn.Module):
    """Its fused code no longer calls `activation`, which by itself has a site too."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(8, 32), Gelu(), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.activation(self.up(x)))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.mlp(x), -1)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of the modules that were verified."""
    found: list[str] = []
    verify = Checker._verify

    def note(self: Checker, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        found.append(type(module).__name__)
        return verify(self, planner, module, call)

    monkeypatch.setattr(Checker, "_verify", note)
    return found


def test_a_child_that_the_fused_code_replaces_is_reported_and_not_verified(verified: list[str]) -> None:
    plain, x = Model(), torch.randn(2, 6, 8)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert fused_rules(model) >= {"AF304"} and "Gelu" not in verified
    assert [s.reason for s in autofuse.report(model) if s.module == "mlp.activation"] == ["as part of AF304 in mlp"]
    assert_same(plain, model, x)


def test_such_a_child_is_verified_at_the_call_in_which_the_guards_of_its_parent_fail(verified: list[str]) -> None:
    plain, x = Model(), torch.randn(2, 6, 8)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    for one in (plain, model):
        one.mlp.down.register_forward_hook(lambda *_: None)  # the fused code would not call it
    assert_same(plain, model, x)
    assert verified.count("Gelu") == 1
    assert "AF301" in fused_rules(model)


def test_such_a_child_is_verified_if_the_check_of_its_parent_fails(
    verified: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, x = Model(), torch.randn(2, 6, 8)
    right = ops.mlp
    monkeypatch.setattr(ops, "mlp", lambda *args, **kwargs: right(*args, **kwargs) * 1.5)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert [s.rule for s in autofuse.report(model).with_status("rolled-back")] == ["AF304"]
    assert "Gelu" in verified and "AF301" in fused_rules(model)
    assert_same(plain, model, x)


class Cache:
    """The keys and values of earlier calls."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None

    def update(self, keys: Tensor) -> Tensor:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=1)
        return self.keys


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        keys = self.project(x)
        if cache is not None:
            keys = cache.update(keys)
        return torch.softmax(x @ keys.transpose(-2, -1) * 0.3, dim=-1) @ keys, keys


class CachesInEvaluation(nn.Module):
    """Its layer gets a cache in evaluation only, as under gradient checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Cached()

    def forward(self, x: Tensor) -> Tensor:
        results = self.layer(x, None if self.training else Cache())
        return results[0] + sum(r.mean() for r in results)  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [True, False])
def test_a_child_with_another_kind_of_call_in_training_is_checked_on_both(training: bool) -> None:
    plain, x = CachesInEvaluation().train(training), torch.randn(2, 6, 8)
    fused = autofuse.optimize(copy.deepcopy(plain), x, tune=False)
    assert not autofuse.report(fused).with_status("rolled-back")
    assert "AF101" in fused_rules(fused)
    for mode in (True, False):
        assert_same(fused.train(mode), plain.train(mode), x)
    assert not autofuse.report(fused).fallbacks


class Biased(nn.Module):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        scores = x @ x.mT * 0.5
        return (scores if bias is None else scores + bias).softmax(-1) @ x


_BIASES = {
    "numbers": torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3),
    "no booleans": torch.zeros(3, 3, dtype=torch.bool),
    "booleans": torch.eye(3).bool(),
    "all": torch.ones(3, 3, dtype=torch.bool),
    "integers": torch.arange(9).view(3, 3),
    "bytes": torch.arange(9, dtype=torch.uint8).view(3, 3),
}


@pytest.mark.parametrize("first", ["numbers", "booleans", None])
def test_a_check_of_one_kind_of_mask_does_not_vouch_for_another(first: str | None) -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, plain = Biased(), Biased()
    autofuse.optimize(model, (x,) if first is None else (x, _BIASES[first]), tune=False)
    for _ in range(2):
        for bias in _BIASES.values():
            torch.testing.assert_close(model(x, bias), plain.forward(x, bias))
