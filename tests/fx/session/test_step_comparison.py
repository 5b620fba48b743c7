"""A comparison of steps with few layers speaks for the whole model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from autofuse.fx.session.model_steps import ModelSteps
from autofuse.fx.session.step_comparison import compare_fused_steps
from autofuse.measure.step_pairs import is_slower, time_steps


@pytest.mark.parametrize(("seconds_of_layers", "slower"), [(0.014, True), (0.006, False)])
def test_a_gain_outside_of_the_layers_hides_no_loss_in_them(seconds_of_layers: float, slower: bool) -> None:
    layer, head = nn.Linear(1, 1), nn.Linear(1, 1)
    durations = {(): 0.01, (layer,): seconds_of_layers, (layer, head): 0.005}

    def step(running: Sequence[nn.Module]) -> Callable[[], None]:
        return lambda: time.sleep(durations[tuple(running)])

    device = torch.device("cpu")
    steps = SimpleNamespace(
        step=step, device=device, repeated_modules=(layer,), planned_modules=(layer, head),
        compare=lambda running: time_steps(step(()), step(running), device),
    )  # fmt: skip
    found = compare_fused_steps(cast(ModelSteps, steps), [layer, head])
    assert is_slower(found) is slower
