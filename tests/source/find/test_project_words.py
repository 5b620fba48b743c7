"""What another file of the command does decides whether an optimizer gets `fused=True` safely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals

OPTIMIZER = """
import torch


def optimizer_of(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        return x
"""
COMPLEX = [
    "self.w = nn.Parameter(torch.rand(4, 4, dtype=torch.cfloat))",
    "self.w = nn.Parameter(0.02 * torch.randn(4, 4, dtype=torch.complex64))",
    "self.w = nn.Parameter(torch.complex(torch.ones(4), torch.ones(4)))",
    "w = torch.ones(4, dtype=torch.cdouble)\n        self.w = nn.Parameter(w)",
    "w = torch.fft.rfft(torch.ones(4))\n        self.register_parameter('w', nn.Parameter(w))",
    "self.w = nn.Linear(4, 4, dtype=torch.cfloat)",
    "self.w = nn.Linear(4, 4).to(torch.complex64)",
]
REAL = [
    "self.w = nn.Parameter(torch.ones(4))",
    "self.w = nn.Linear(4, 4)",
    "self.w = nn.Parameter(torch.ones(4))\n        self.turns = torch.polar(torch.ones(4), torch.arange(4.0))",
    "self.w = nn.Linear(4, 4)\n        self.register_buffer('turns', torch.ones(4, dtype=torch.cfloat))",
]


def _finding(folder: Path, other: str) -> Finding:
    (folder / "other.py").write_text(other)
    (folder / "train.py").write_text(OPTIMIZER)
    paths = (str(folder / "train.py"), str(folder / "other.py"))
    found = proposals(OPTIMIZER.encode(), paths[0], rules=load_rules(), files=ProjectFiles(paths))
    return next(p.finding for p in found if p.finding.code == "AF601")


def _runs_fused(text: str) -> bool:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(text, names)
    model = names["Model"]()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    try:
        optimizer.step()
    except RuntimeError as error:
        assert "floating point" in str(error)
        return False
    return True


@pytest.mark.parametrize("made", COMPLEX)
def test_complex_parameters_of_another_file_make_the_edit_unsafe(tmp_path: Path, made: str) -> None:
    model = MODEL.format(made=made)
    assert not _runs_fused(model)
    finding = _finding(tmp_path, model)
    assert finding.status == "unsafe"
    assert "no parameter is complex (other.py makes complex numbers)" in finding.message


@pytest.mark.parametrize("made", REAL)
def test_real_parameters_of_another_file_keep_the_edit_safe(tmp_path: Path, made: str) -> None:
    model = MODEL.format(made=made)
    assert _runs_fused(model)
    assert _finding(tmp_path, model).status == "safe"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("import torch\nimport torch_xla.core.xla_model as xm\n", "other.py mentions XLA"),
        ("import torch\nimport pytorch_lightning as pl\n", "Lightning does not clip gradients"),
    ],
)
def test_what_runs_the_training_in_another_file_is_named(tmp_path: Path, other: str, words: str) -> None:
    finding = _finding(tmp_path, other)
    assert finding.status == "unsafe"
    assert words in finding.message
