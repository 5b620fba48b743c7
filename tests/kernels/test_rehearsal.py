"""The kernels of a backward pass are compiled before the forward pass is used, and what fails there is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.kernels import rehearsal
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.packages import TORCH, TRITON
from autofuse.kernels.provider import Provider

pytest.importorskip("triton")
REPOSITORY = Path(__file__).parents[2]
OURS = sorted(name for name, o in OPERATIONS.items() if any(p.package is TRITON for p in o.providers))
LAST = {"rotary": "turned", "cross_entropy": "_gradient", "linear_cross_entropy": "_gradient"}


def _rehearsed(*options: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.rehearsing", *options]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.night
def test_every_operation_with_a_triton_kernel_compiles_its_backward_pass_ahead() -> None:
    found = _rehearsed()
    assert sorted(found["operations"]) == OURS
    for name, made in found["operations"].items():
        assert made["trouble"] == "", (name, made)
        assert len(made["kernels"]) >= 2, (name, made)
        expected = LAST.get(name, "gradient_rows" if name == "masked_softmax" else "_backward")
        assert made["kernels"][-1] == expected, (name, made)
        assert made["current"] == found["elsewhere"]
    assert found["elsewhere"] not in found["streams"]


def test_a_backward_kernel_that_does_not_compile_is_named_with_the_reason() -> None:
    made = _rehearsed("--broken", "rms_norm")["operations"]["rms_norm"]
    assert "_backward: TypeError: range.__init__() got an unexpected keyword argument" in made["trouble"]


@pytest.mark.night
def test_so_is_that_of_every_operation() -> None:
    for name, made in _rehearsed("--broken")["operations"].items():
        assert made["trouble"].startswith("A kernel of a training step does not compile here. "), name
        assert "TypeError: range.__init__() got an unexpected keyword argument" in made["trouble"]


@pytest.mark.parametrize("package", [TORCH, TRITON])
def test_nothing_is_rehearsed_on_a_cpu(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "compiled_trouble", lambda *_: pytest.fail("It was rehearsed."))
    provider = Provider("doubled", "own", package, lambda x: x * 2, "", "")
    assert rehearsal.backward_trouble(provider, [torch.ones(4, requires_grad=True)], {}) == ""


def test_what_cannot_run_without_data_counts_as_what_compiles() -> None:
    pytest.importorskip("autofuse.kernels.triton.launch")
    run = lambda x: x * float(x.detach().sum())  # a number that a tensor without data does not have
    device = torch.device("cuda", 1)
    assert rehearsal.compiled_trouble(run, device, [torch.ones(4, requires_grad=True)], {}) == ""


def test_a_rehearsal_leaves_gradients_and_hooks_alone() -> None:
    x, seen = torch.ones(4, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        assert rehearsal.compiled_trouble(lambda x: x.exp(), torch.device("cuda", 1), [x], {}) == ""
    assert x.grad is None and not seen
