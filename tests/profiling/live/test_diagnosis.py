"""The diagnosis of scripts that run here, whose causes are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.night  # by day: simulated traces, in tests/profiling/trace/diagnosis, and of_profile's own

_LOADER = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 10000
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.ones(64)

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Slow(), batch_size=16):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
_PYTHON = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.ModuleList(nn.Linear(8, 8) for _ in range(60))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model
    def forward(self, x):
        for part in self.parts:
            x = torch.tanh(part(x)) + x * 0.5
        return x

whole, x = Many(), torch.ones(2, 8)
while True:
    optimizer.zero_grad(); whole(x).square().mean().backward(); optimizer.step()
"""
_PRODUCTS = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(512, 1024)
while True:
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("script", "limit"),
    [(_LOADER, "data"), (_PYTHON, "launch"), (_PRODUCTS, "compute")],
    ids=["data", "launch", "compute"],
)
def test_the_cause_is_named(script: str, limit: str, tmp_path: Path) -> None:
    assert diagnosed(script, tmp_path)["class"] == limit


def diagnosed(script: str, folder: Path) -> Any:
    (folder / "train.py").write_text(script)
    run = [sys.executable, "-m", "autofuse", "profile", "--output", str(folder / "out"), "train.py"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out" / "profile.json").read_text())["diagnosis"]
