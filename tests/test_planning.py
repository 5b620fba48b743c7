"""autofuse.planning keeps the name that users import."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autofuse.planning
from autofuse.planning import plan
from autofuse.profiling.plan import plan as module


def test_plan_is_imported_from_planning() -> None:
    assert plan is module.plan and autofuse.planning.__all__ == ["plan"]


def test_a_plan_under_a_python_profiler_says_that_nothing_can_be_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_watch", lambda: False)
    made = plan(nn.Linear(4, 4), torch.ones(2, 4))
    assert made.before.memory.peak_bytes and made.after.memory.peak_bytes is None
    assert "without the profiler" in made.after.reason and "without the profiler" in str(made)
