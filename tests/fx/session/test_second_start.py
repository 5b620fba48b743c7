"""A second process finds the timings and the compiled regions of the first, and works without a cache folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autofuse.kernels import packages

# What test_remembered_times.py, test_region_store.py and test_cache.py test by day for each part of the cache.
pytestmark = pytest.mark.night
REPOSITORY = Path(__file__).parents[3]
PROGRAM = """
import copy, json
import torch
from torch import Tensor, nn
import autofuse
from autofuse.fx.session import site_timing
from autofuse.kernels import region_compiler

class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(128)), nn.Parameter(torch.zeros(128))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias

class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        return x + self.down(0.5 * hidden * (1 + torch.erf(hidden / 2**0.5)))

made = {"timed": 0, "compiled": 0}

def counted(module, name, what):
    work = getattr(module, name)
    def count(*args, **kwargs):
        made[what] += 1
        return work(*args, **kwargs)
    setattr(module, name, count)

counted(site_timing, "_time_excerpt", "timed")
counted(region_compiler, "_compile", "compiled")
torch.manual_seed(0)
plain, x = nn.Sequential(Block(), Block()), torch.randn(8, 128, 128)
model = autofuse.optimize(copy.deepcopy(plain), x)
torch.testing.assert_close(model(x), plain(x))
noisy = [s.module for s in autofuse.report(model) if s.reason_code == "too-noisy"]
print(json.dumps(made | {"fused": autofuse.report(model).summary, "noisy": noisy}))
"""


def start(cache: Path, compiler: Path) -> dict[str, Any]:
    """What a new process timed and compiled."""
    folders = {"AUTOFUSE_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(compiler), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **folders, "AUTOFUSE_MEASURED": "1"},
                         cwd=REPOSITORY, capture_output=True, text=True, check=False)  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")
def test_the_second_start_times_and_compiles_nothing_that_the_first_did(tmp_path: Path) -> None:
    first = start(tmp_path / "cache", tmp_path / "inductor")
    second = start(tmp_path / "cache", tmp_path / "inductor of another start")
    assert first["timed"] > 0 and first["compiled"] > 0
    assert second["compiled"] == 0
    if not first["noisy"]:  # what noise left open is timed again
        assert (second["timed"], second["fused"]) == (0, first["fused"])


@pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")
def test_without_a_cache_folder_each_start_measures_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # no folder can be made below a file, not even by root
    starts = [start(tmp_path / "file" / "cache", tmp_path / "inductor") for _ in range(2)]
    assert all(s["timed"] > 0 and "fused" in s["fused"] for s in starts)
