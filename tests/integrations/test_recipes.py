"""Every recipe of docs/integrations.md runs with and without the marked line, with the same results."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.integrations import dynamo
from tests.integrations.recipe import PAGE, recipe

ROOT = Path(__file__).parents[2]
BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
# In float32, losses of about four nats are rounded to 2^-22; attention adds some tens of products in another order, and
# a few steps with a rate of 1e-3 carry that on: 64 roundings are an ample bound, and far below what a wrong step does.
BOUND = 64 * 2.0**-22


def run(heading: str, folder: Path, processes: int) -> dict[str, Any]:
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [*launch, "-m", "tests.integrations.recipe", heading, str(folder / "ran.json")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ran: dict[str, Any] = json.loads((folder / "ran.json").read_text())
    return ran


@pytest.mark.parametrize(
    ("heading", "library", "processes"),
    [
        pytest.param("transformers", "transformers", 1, marks=pytest.mark.night),  # by day: test_transformers.py
        ("Lightning", "lightning", 1),
        pytest.param("accelerate with FSDP2", "accelerate", 2, marks=pytest.mark.night),
        ("torchrun", "torch", 2),
        pytest.param("Like torchtitan", "torch", 2, marks=pytest.mark.night),
    ],
)
def test_the_added_line_fuses_and_keeps_the_losses_and_the_checkpoint(
    heading: str, library: str, processes: int, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    ran = run(heading, tmp_path, processes)
    plain, fused = ran["plain"], ran["fused"]
    assert len(plain["losses"]) == len(fused["losses"]) == 4
    assert plain["losses"] == pytest.approx(fused["losses"], abs=BOUND, rel=0)
    assert plain["operators"] == {}
    assert fused["operators"].get(BACKWARD, 0) >= 4, fused["operators"]  # once in each of the four steps, at least
    assert "_MaskedSoftmaxBackward" not in fused["operators"], "attention ran in part"
    for saved in (tmp_path / "plain").glob("model.pt"):
        one, other = (torch.load(tmp_path / kind / saved.name, weights_only=True) for kind in ("plain", "fused"))
        assert one.keys() == other.keys()
        assert all(one[k].shape == other[k].shape and one[k].dtype == other[k].dtype for k in one)


def test_the_analysis_in_the_docs_is_right() -> None:
    torch._dynamo.reset()
    scope: dict[str, Any] = {"analyze": dynamo.analyze}  # in a source tree, torch does not know the name
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = recipe("What is unfused").replace('backend="autofuse"', "backend=analyze")
        exec(compile(code, str(PAGE), "exec"), scope)
    (site,) = (s for s in scope["found"] if s.rule == "AF101")
    assert (site.status, site.count) == ("unfused", 2)
    assert scope["found"].breaks
    assert "graph break" in printed.getvalue()
