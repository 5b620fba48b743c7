"""The modules that are rolled back if the whole model differs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session.trials import ForwardTrial
from autofuse.verify.modules import Verification
from tests.fx.conftest import Gpt, assert_same


def test_a_model_that_agrees_stays_fused(tokens: Tensor) -> None:
    assert not autofuse.report(autofuse.optimize(Gpt(), tokens)).with_status("rolled-back")


@pytest.mark.parametrize(
    ("bad", "taken"),
    [
        ({"blocks.1.attn"}, {"blocks.1.attn"}),
        ({"blocks.1"}, {"blocks.1", "blocks.1.attn"}),
        ({"blocks.0", "blocks.1"}, {"blocks.0", "blocks.0.attn", "blocks.1", "blocks.1.attn"}),
    ],
)
def test_the_modules_nearest_to_the_difference_are_rolled_back_until_it_is_gone(
    bad: set[str], taken: set[str], tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, culprit = Gpt(), "gradient of self.blocks.1.attn.proj.weight"
    names = {m: n for n, m in model.named_modules()}

    of_a_module = ForwardTrial.outcome

    def outcome(self: ForwardTrial, running: Sequence[nn.Module] | None = None) -> Verification:
        if running is None:
            return of_a_module(self)
        ok = not bad & {names[m] for m in running}
        return Verification(ok, reason="" if ok else "It is off.", culprit="" if ok else culprit)

    monkeypatch.setattr(ForwardTrial, "outcome", outcome)
    plain = copy.deepcopy(model)
    report = autofuse.report(autofuse.optimize(model, tokens))
    back = report.with_status("rolled-back")
    assert {s.module for s in back} == taken
    assert {(s.reason, s.reason_code) for s in back} == {("the whole model differs: It is off.", "whole-differs")}
    assert {s.module for s in report.with_status("fused")} == {
        "blocks.0",
        "blocks.0.attn",
        "blocks.1",
        "blocks.1.attn",
    } - taken
    assert_same(plain, model, torch.randint(0, 20, (2, 8)))


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(8, 32), Gelu(), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.activation(self.up(x)))
        return result


def test_a_module_that_a_rolled_back_site_replaced_keeps_its_original(monkeypatch: pytest.MonkeyPatch) -> None:
    of_a_module = ForwardTrial.outcome

    def outcome(self: ForwardTrial, running: Sequence[nn.Module] | None = None) -> Verification:
        if running is None:
            return of_a_module(self)
        is_off = any(isinstance(m, Mlp) for m in running)
        return Verification(not is_off, reason="It is off." * is_off, culprit="result[0]" * is_off)

    monkeypatch.setattr(ForwardTrial, "outcome", outcome)
    plain, x = nn.Sequential(Mlp(), nn.Linear(8, 8)), torch.randn(2, 6, 8)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    for _ in range(2):  # a call captures nothing
        assert {s.module for s in autofuse.report(model).with_status("rolled-back")} == {"0", "0.activation"}
        assert not autofuse.report(model).with_status("fused")
        assert_same(plain, model, x)
