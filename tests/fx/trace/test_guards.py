"""A rewritten forward runs while its guards hold. Otherwise another variant or the original forward runs."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.guards import Guards
from tests.fx.conftest import Attention, Block, assert_same, fused_rules, optimized

X = (2, 8, 16)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(*X)


def test_a_mask_is_optional(x: Tensor) -> None:
    model = Attention()
    fused = optimized(model, x)
    assert_same(model, fused, x)
    mask = (torch.rand(2, 1, 8, 8) > 0.3).float().tril()
    mask[..., 0] = 1
    assert_same(model, fused, x, mask)
    assert_same(model, fused, x, mask=mask)
    assert_same(model, fused, x)


def test_another_dtype_is_another_kind_of_call(x: Tensor) -> None:
    model = Attention().double()
    fused = optimized(Attention(), x)
    fused.load_state_dict(model.state_dict())
    assert_same(model, fused.double(), x.double())


def test_a_later_change_of_the_dropout_rate_takes_effect(x: Tensor) -> None:
    fused = optimized(Attention(p=0.5), x).train()
    fused.drop.p = 0.0
    assert torch.equal(fused(x), fused(x))
    fused.drop.p = 0.9
    assert not torch.equal(fused(x), fused(x))
    assert torch.equal(fused.eval()(x), fused(x))


def test_dropout_in_evaluation_mode_stays_off(x: Tensor) -> None:
    fused = optimized(Attention(p=0.5), x).train()
    fused.drop.eval()
    assert torch.equal(fused(x), fused(x))


def test_numbers_on_self_are_read_again(x: Tensor) -> None:
    model = Attention()
    fused = optimized(model, x)
    model.heads = fused.heads = 4
    assert_same(model, fused, x)


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=0.25, causal=False, inner=SimpleNamespace(sharpen=1.0))

    def forward(self, q: Tensor) -> Tensor:
        scores = q @ q.mT * self.config.scale * self.config.inner.sharpen
        if self.config.causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        return F.softmax(scores, -1) @ q


@pytest.mark.parametrize("change", [{"scale": 0.5}, {"causal": True}, {"inner": SimpleNamespace(sharpen=2.0)}])
def test_a_nested_configuration_is_read_again(change: dict[str, object]) -> None:
    q = torch.randn(2, 8, 4, requires_grad=True)
    model = Configured()
    fused = optimized(model, q)
    assert fused_rules(fused) == {"AF101"}
    for m in (model, fused):
        vars(m.config).update(change)
    torch.testing.assert_close(model(q), fused(q))


def test_a_branch_on_a_length_takes_the_right_side() -> None:
    class Branching(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            scores = q @ q.mT
            if q.shape[1] > 4:
                scores = scores * 0.5
            return F.softmax(scores, -1) @ q

    model = Branching()
    fused = optimized(model, torch.randn(2, 8, 4))
    for length in (8, 4, 1, 9):
        q = torch.randn(3, length, 4)
        torch.testing.assert_close(model(q), fused(q))


def test_a_loop_over_a_length_is_right_for_each_length() -> None:
    class Looping(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            attended = F.softmax(q @ q.mT, -1) @ q
            total = attended[:, 0]
            for t in range(1, q.size(1)):
                total = total + attended[:, t]
            for part in attended.split(2, dim=1):
                total = total + part.sum(1)
            return total

    model = Looping()
    fused = optimized(model, torch.randn(2, 4, 4))
    for length in range(1, 14):
        q = torch.randn(2, length, 4)
        torch.testing.assert_close(model(q), fused(q))


def test_new_kinds_of_calls_are_bounded_and_reported() -> None:
    class Stepping(nn.Module):
        def forward(self, q: Tensor, step: int) -> Tensor:
            return F.softmax(q @ q.mT * (step + 1), -1) @ q

    q, model = torch.randn(2, 4, 4), Stepping()
    fused = optimized(model, q, 0)
    for step in range(20):
        torch.testing.assert_close(model(q, step), fused(q, step))
    assert any("more than 8 kinds of arguments" in s.reason for s in autofuse.report(fused).sites)


def test_a_hook_on_a_bypassed_child_fires() -> None:
    model, x, seen = Block(), torch.randn(*X), []
    fused = optimized(model, x)
    assert "AF203" in fused_rules(fused)
    handle = fused.ln_2.register_forward_hook(lambda *_: seen.append(1))
    assert_same(model, fused, x)
    assert seen
    handle.remove()
    seen.clear()
    assert_same(model, fused, x)


def test_a_hook_on_all_modules_fires() -> None:
    model, x, seen = Block(), torch.randn(*X), []
    fused = optimized(model, x)
    with torch.nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m).__name__)):
        fused(x)
    assert seen.count("LayerNorm") == 2


def test_a_replaced_child_is_used() -> None:
    model, x = Block(), torch.randn(*X)
    fused = optimized(model, x)
    for m in (model, fused):
        m.ln_2 = nn.Identity()
    assert_same(model, fused, x)


def test_a_later_change_of_a_causal_buffer_takes_effect(x: Tensor) -> None:
    model = Attention()
    fused = optimized(model, x)
    for m in (model, fused):
        m.bias[..., 0, 1] = 1
    assert_same(model, fused, x)
    for m in (model, fused):
        m.register_buffer("bias", torch.ones(1, 1, 32, 32))
    assert_same(model, fused, x)


def test_autocast_is_another_kind_of_call(x: Tensor) -> None:
    model = Attention()
    fused = optimized(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = model(x), fused(x)
    assert expected.dtype is actual.dtype
    torch.testing.assert_close(expected, actual, atol=3e-2, rtol=3e-2)


def test_a_result_of_which_the_parent_reads_a_part_is_complete_for_others() -> None:
    class Inner(nn.Module):
        def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
            weights = F.softmax(q @ q.mT, -1)
            return weights @ q, weights

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, q: Tensor) -> Tensor:
            result, _ = self.inner(q)
            return result * 2

    model, q, seen = Outer(), torch.randn(2, 8, 4), []
    fused = autofuse.optimize(copy.deepcopy(model), q)
    assert fused_rules(fused) == {"AF101"}
    torch.testing.assert_close(model(q), fused(q))
    torch.testing.assert_close(model.inner(q)[1], fused.inner(q)[1])
    fused.inner.register_forward_hook(lambda m, a, result: seen.append(result[1]))
    fused(q)
    torch.testing.assert_close(seen[0], model.inner(q)[1])


def test_equal_values_have_one_name() -> None:
    guards = Guards()
    guards.equal("x.dtype", torch.float32)
    guards.equal("y.dtype", torch.float32)
    guards.equal("self.p", 0.5)
    guards.equal("self.p", None)
    assert guards.text == "x.dtype == _c0 and y.dtype == _c0 and self.p == 0.5 and self.p is None"
