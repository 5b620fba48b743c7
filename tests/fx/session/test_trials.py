"""Rewritten forwards are tried on copies: the given modules of a copy run them, and the user's modules never do."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.display.progress import quietly
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.session.planner import Planner, plan_calls
from autofuse.fx.session.state import states_of
from autofuse.fx.session.trials import ForwardTrial
from autofuse.fx.trace.module_calls import calls_of
from autofuse.fx.trace.user_code import pause_watching
from autofuse.fx.trace.wrappers import user_modules
from autofuse.loading.registry import load_rules
from autofuse.verify.modules import ModuleReference, Verification


class Attention(nn.Module):
    """Returns its probabilities, so it is fused only for a caller that ignores them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1) * 0.25, dim=-1)
        return probabilities @ self.v(x), probabilities


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x)[0])


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[set[str]]:
    """For each checked copy, the modules with a rewritten forward. In a queue, because a check restores lists."""
    seen: SimpleQueue[set[str]] = SimpleQueue()
    check = ModuleReference.check

    def record_running(self: ModuleReference, rewritten: nn.Module, **options: bool) -> Verification:
        with pause_watching():
            seen.put({name for name, m in rewritten.named_modules() if is_installed(m)})
        return check(self, rewritten)

    monkeypatch.setattr(ModuleReference, "check", record_running)
    return seen


def take_all(seen: SimpleQueue[set[str]]) -> list[set[str]]:
    return [seen.get() for _ in range(seen.qsize())]


def plan_model(model: nn.Module, x: Tensor) -> Planner:
    states = states_of(user_modules(model), lambda name, module: True)
    return plan_calls(load_rules(), states, calls_of(model, ((x,), {}), ()).by_mode, quietly)


def test_a_module_is_tried_with_its_narrow_children(run_by: SimpleQueue[set[str]]) -> None:
    layer, x = Layer(), torch.randn(2, 4, 16)
    assert ForwardTrial(layer, ((x,), {}), plan_model(layer, x)).outcome().ok
    assert take_all(run_by) == [{"", "attention"}]
    assert not any(is_installed(m) for m in layer.modules())


def test_in_a_model_only_the_given_modules_run_their_plans(run_by: SimpleQueue[set[str]]) -> None:
    layer, x = Layer(), torch.randn(2, 4, 16)
    trial = ForwardTrial(layer, ((x,), {}), plan_model(layer, x))
    assert all(trial.outcome(running).ok for running in ([layer, layer.attention], [layer], [layer.attention], []))
    assert take_all(run_by) == [{"", "attention"}, {""}, {"attention"}, set()]


class KeepsInADefault(nn.Module):
    def forward(self, x: Tensor, past: list[Tensor] = []) -> Tensor:  # noqa: B006
        past.append(x.detach())
        every = torch.cat(past, 1)
        return torch.softmax(x @ every.mT * 0.3, -1) @ every


def test_a_check_leaves_nothing_in_the_defaults_of_a_forward() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    autofuse.optimize(KeepsInADefault().double(), x, tune=False)
    assert KeepsInADefault.forward.__defaults__ == ([],)
