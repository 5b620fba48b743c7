"""Code that nearly matches is reported with the step that is in the way, in files and in live models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autofuse
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find.check import proposals

RULES = load_rules()
STEPS = {
    "clamp": "s = (s + m).clamp(min=-5.0)",
    "sin": "s = torch.sin(s)",
    "max": "s = torch.max(s + m, torch.full((), -5.0))",
    "cumsum": "s = s.cumsum(-1) + m",
}
OTHERS = {
    "the output of a layer": "s = torch.tanh(self.score(q))",
    "no matrix product": "s = torch.sin(q[:, :, :5])",
    "a product with a weight": "s = torch.tanh(q @ self.weight)",
    "a soft cap, which another rule fuses": "s = torch.tanh(s / 30.0) * 30.0",
}
PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 5)
        self.weight = nn.Parameter(torch.randn(8, 5))

    def forward(self, q, k, v, m):
        s = q @ k.transpose(-2, -1) * 0.3
        {step}
        return F.softmax(s, dim=-1) @ v
"""


def in_text(step: str) -> list[Finding]:
    text = PROGRAM.format(step=step).encode()
    return [p.finding for p in proposals(text, "model.py", rules=RULES, skipped=[]) if p.finding.code == "AF101"]


def live(step: str, folder: Path) -> Any:
    names: dict[str, Any] = {}
    file = folder / "model.py"
    file.write_text(PROGRAM.format(step=step))
    exec(compile(file.read_text(), str(file), "exec"), names)
    model: nn.Module = names["Attention"]()
    query, key, value = (torch.randn(2, 5, 8) for _ in range(3))
    autofuse.optimize(model, (query, key, value, torch.zeros(5, 5)), tune=False)
    return [s for s in autofuse.report(model) if s.rule == "AF101"]


@pytest.mark.parametrize("step", STEPS)
def test_the_step_before_the_softmax_is_named(step: str, tmp_path: Path) -> None:
    (finding,), (site,) = in_text(STEPS[step]), live(STEPS[step], tmp_path)
    for found in (finding, site):
        assert f"`{step}` comes before the softmax" in found.reason
    assert finding.status == site.status == "declined"


@pytest.mark.parametrize("other", OTHERS)
def test_other_softmaxes_are_not_reported(other: str, tmp_path: Path) -> None:
    assert in_text(OTHERS[other]) == live(OTHERS[other], tmp_path) == []
