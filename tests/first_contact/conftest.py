"""The wheel of this tree, and a recorded trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def wheel(tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of this tree, because a build leaves folders behind."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name, content in tree.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("pip reaches no package index, and building needs setuptools from one")
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of torch.profiler, such as a newcomer may have."""
    file = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    model, inputs = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.randn(4, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(3):
            model(inputs).sum().backward()
            recorded.step()
    recorded.export_chrome_trace(str(file))
    return file
