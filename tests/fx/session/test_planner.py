"""Plans depend on rules, states and calls only. No session exists, and nothing is installed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.display.progress import quietly
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.rewrite.module_plan import ModulePlan, plan_trace
from autofuse.fx.session import planner as planner_file
from autofuse.fx.session.planner import Planner, plan_calls
from autofuse.fx.session.state import states_of
from autofuse.fx.trace.module_calls import calls_of
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.fx.trace.wrappers import user_modules
from autofuse.loading.registry import load_rules
from tests.fx.conftest import Gpt


class BranchesOnNumbers(nn.Module):
    """A hand-written softmax and a branch on tensor values, which cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1) if x.sum() > 0 else x


def plan_model(model: nn.Module, *inputs: Tensor) -> Planner:
    states = states_of(user_modules(model), lambda name, module: True)
    calls = calls_of(model, (inputs, {}), to_check=())
    return plan_calls(load_rules(), states, calls.by_mode, quietly)


def fused(planner: Planner, module: nn.Module) -> set[str]:
    return {found.rule for found in planner.fused_sites(module).values()}


def test_a_model_is_planned_in_both_modes_and_nothing_is_installed() -> None:
    model = Gpt()
    before = copy.deepcopy(model.state_dict())
    planner = plan_model(model, torch.randint(0, 20, (2, 8)))
    attention = model.get_submodule("blocks.0.attn")
    assert set(planner.full_plans(attention)) == {False, True} and "AF101" in fused(planner, attention)
    assert not any(is_installed(m) for m in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_planning_without_a_site_excludes_it_in_that_module_only() -> None:
    model = Gpt()
    planner = plan_model(model, torch.randint(0, 20, (2, 8)))
    first, second = (model.get_submodule(f"blocks.{i}.attn") for i in (0, 1))
    sites = [key for key, found in planner.fused_sites(first).items() if found.rule == "AF101"]
    planner.plan_again(first, planner.states[first].exclusions.plus(sites=sites))
    assert "AF101" not in fused(planner, first) and "AF101" in fused(planner, second)
    assert set(planner.full_plans(first)) == {False, True}


def test_planning_without_a_rule_excludes_all_its_sites() -> None:
    model = Gpt()
    planner = plan_model(model, torch.randint(0, 20, (2, 8)))
    attention = model.get_submodule("blocks.0.attn")
    planner.plan_again(attention, planner.states[attention].exclusions.plus(rules=["AF101"]))
    assert "AF101" not in fused(planner, attention)


def test_exclusions_apply_to_later_plans() -> None:
    model = Gpt()
    inputs = torch.randint(0, 20, (2, 8))
    states = states_of(user_modules(model), lambda name, module: True)
    attention = model.get_submodule("blocks.0.attn")
    states[attention].exclusions = states[attention].exclusions.plus(rules=["AF101"])
    planner = plan_calls(load_rules(), states, calls_of(model, ((inputs,), {}), ()).by_mode, quietly)
    assert "AF101" not in fused(planner, attention)
    assert "AF101" in fused(planner, model.get_submodule("blocks.1.attn"))


def test_untraceable_modules_are_listed() -> None:
    model = BranchesOnNumbers()
    planner = plan_model(model, torch.ones(3, 3))
    assert {module for module, _ in planner.untraceable} == {model}
    assert all("values" in str(error) for _, error in planner.untraceable)
    assert planner.full_plans(model) == {}


class TanhGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


class Silu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class HandNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class HandAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.joint(x).chunk(3, -1)
        return torch.softmax(query @ key.transpose(-2, -1) / 4, dim=-1) @ value


class HandMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return self.down(0.5 * hidden * (1 + torch.erf(hidden / 2**0.5)))


@pytest.mark.parametrize("kind", [TanhGelu, Silu, HandNorm, HandAttention, HandMlp])
def test_equal_layers_of_any_kind_are_planned_once(monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]) -> None:
    """Whatever the fused code calls, it does not make two equal layers different."""
    rewritten: list[nn.Module] = []

    def plan(trace: ForwardTrace, *rest: Any) -> ModulePlan:
        rewritten.append(trace.module)
        return plan_trace(trace, *rest)

    monkeypatch.setattr(planner_file, "plan_trace", plan)
    layers = [kind() for _ in range(3)]
    # The input of the first layer has a gradient too, so the calls of all layers are equal.
    planner = plan_model(nn.Sequential(nn.Linear(16, 16), *layers), torch.randn(2, 8, 16))
    assert all(fused(planner, layer) for layer in layers), "each layer has its plan"
    assert [layer in rewritten for layer in layers] == [True, False, False]


class Indexed(nn.Module):
    """A layer norm that knows its place."""

    def __init__(self, index: int, reads: bool) -> None:
        super().__init__()
        self.index, self.reads = index, reads
        self.weight, self.bias = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        result = (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias
        return result * (self.index + 1) if self.reads else result


@pytest.mark.parametrize(("reads", "planned"), [(False, 2), (True, 8)])
def test_layers_that_differ_in_what_no_trace_reads_are_planned_once(
    reads: bool, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[nn.Module] = []

    def noted_plan(trace: ForwardTrace, *rest: Any) -> ModulePlan:
        layers.extend([trace.module] if isinstance(trace.module, Indexed) else [])
        return plan_trace(trace, *rest)

    monkeypatch.setattr(planner_file, "plan_trace", noted_plan)
    model, x = nn.Sequential(nn.Linear(32, 32), *(Indexed(i, reads) for i in range(4))), torch.randn(2, 8, 32)
    expected = model(x)
    autofuse.optimize(model, x, tune=False)
    assert len(layers) == planned
    assert len(autofuse.report(model).with_status("fused")) == 4
    torch.testing.assert_close(model(x), expected)
    model[4].index = 7  # type: ignore[assignment]
    torch.testing.assert_close(model(x), expected * (2.0 if reads else 1.0))
