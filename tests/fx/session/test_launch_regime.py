"""What steps on a GPU wait for is found in a step of the model, and decides how kernels are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autofuse.fx.session import launch_regime
from autofuse.fx.session.launch_regime import launch_bound_by, note_launch_regime
from autofuse.fx.session.planner import Planner
from autofuse.kernels import policy
from autofuse.kernels.policy import settings


@pytest.fixture(autouse=True)
def as_at_the_start() -> Iterator[None]:
    with policy.using(launch_bound=None):
        yield
    launch_regime._found[0] = None


@pytest.mark.parametrize("share, bound", [
    (1.0, False), (0.9, False), (0.89, None), (0.6, None), (0.59, True), (0.01, True), (None, None),
])  # fmt: skip
def test_the_busy_share_decides_unless_it_is_in_the_middle(share: float | None, bound: bool | None) -> None:
    assert launch_bound_by(share) is bound


def _note(monkeypatch: pytest.MonkeyPatch, share: float | None, device: str = "cuda") -> None:
    """Note the regime of a model on a device, whose profiler reports that share. The steps run on the CPU."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    planner = Planner((), {}, {False: {model: []}, True: {model: []}})  # type: ignore[dict-item]
    monkeypatch.setattr(launch_regime, "device_of", lambda *_: torch.device(device))
    monkeypatch.setattr(launch_regime, "busy_share", lambda step, _: (step(), share)[1])
    note_launch_regime(model, ((x,), {}), planner)


def test_a_step_on_a_gpu_sets_the_policy_and_the_next_model_sets_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()
    for share in (0.97, 0.2, 0.7):
        _note(monkeypatch, share)
        found.append(settings().launch_bound)
    assert found == [False, True, None]


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    policy.use(launch_bound=True)
    _note(monkeypatch, 0.97)
    assert settings().launch_bound is True


def test_on_a_cpu_nothing_runs_and_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    _note(monkeypatch, 0.97, device="cpu")
    assert settings().launch_bound is None


def test_a_step_that_raises_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not for random inputs")

    model = Raises(4, 4)
    monkeypatch.setattr(launch_regime, "device_of", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(launch_regime, "busy_share", lambda step, _: step())
    note_launch_regime(model, ((torch.randn(2, 4),), {}), Planner((), {}, {False: {model: []}, True: {model: []}}))  # type: ignore[dict-item]
    assert settings().launch_bound is None
