"""The kernels of a backward pass are compiled before the forward pass runs, and failures are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.kernels import rehearsal
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.packages import TORCH, TRITON
from autofuse.kernels.provider import Provider

pytest.importorskip("triton")

from autofuse.kernels.triton.launch import launch
from tests.kernels.triton.standing_in import Kernel, two_devices
from tools.ahead.absent import Absent

REPOSITORY = Path(__file__).parents[2]
OURS = sorted(name for name, o in OPERATIONS.items() if any(p.package is TRITON for p in o.providers))
LAST = {"rotary": "rotate", "cross_entropy": "_gradient", "linear_cross_entropy": "_gradient"}


def _rehearse(*options: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.rehearsing", *options]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.night
def test_every_operation_with_a_triton_kernel_compiles_its_backward_pass_ahead() -> None:
    found = _rehearse()
    assert sorted(found["operations"]) == OURS
    for name, made in found["operations"].items():
        assert made["trouble"] == "", (name, made)
        assert len(made["kernels"]) >= 2, (name, made)
        expected = LAST.get(name, "gradient_rows" if name == "masked_softmax" else "_backward")
        assert made["kernels"][-1] == expected, (name, made)
        assert made["current"] == found["elsewhere"]
    assert found["elsewhere"] not in found["streams"]


class _Doubled(torch.autograd.Function):
    """Two kernels that say where they would be launched; that of the backward pass may not compile."""

    forward_kernel: Any = None
    backward_kernel: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        launch(_Doubled.forward_kernel, (1,), x, threads=128)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        launch(_Doubled.backward_kernel, (1,), grad, threads=128)
        return torch.empty_like(grad)


@pytest.fixture
def absent_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Absent]:
    with two_devices() as driver:
        monkeypatch.setattr(_Doubled, "forward_kernel", Kernel(driver))
        monkeypatch.setattr(_Doubled, "backward_kernel", Kernel(driver))
        yield driver


def _compile_error(absent_gpu: Absent) -> str:
    device = torch.device("cuda", absent_gpu.home)
    return rehearsal.compile_error(_Doubled.apply, device, [torch.ones(4, requires_grad=True)], {})


def test_both_passes_are_compiled_on_the_device_of_the_call_and_not_launched(absent_gpu: Absent) -> None:
    assert _compile_error(absent_gpu) == ""
    for kernel in (_Doubled.forward_kernel, _Doubled.backward_kernel):
        assert [(device, warmup) for device, warmup, _ in kernel.launched] == [(absent_gpu.home, True)]


def test_a_backward_kernel_that_does_not_compile_is_named_with_the_reason(absent_gpu: Absent) -> None:
    _Doubled.backward_kernel.error = TypeError("unexpected keyword argument 'disable_licm'")
    assert _compile_error(absent_gpu) == (
        "A kernel of a training step does not compile here. kernel: TypeError: unexpected keyword argument "
        "'disable_licm'"
    )


@pytest.mark.night
def test_a_backward_kernel_of_every_operation_that_does_not_compile_is_reported() -> None:
    for name, made in _rehearse("--broken")["operations"].items():
        assert made["trouble"].startswith("A kernel of a training step does not compile here. "), name
        assert "TypeError: range.__init__() got an unexpected keyword argument" in made["trouble"]


@pytest.mark.parametrize("package", [TORCH, TRITON])
def test_nothing_is_compiled_ahead_on_a_cpu(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "compile_error", lambda *_: pytest.fail("It was rehearsed."))
    provider = Provider("doubled", "own", package, lambda x: x * 2, "", "")
    assert rehearsal.backward_compile_error(provider, [torch.ones(4, requires_grad=True)], {}) == ""


def test_a_call_that_cannot_run_without_data_counts_as_compiling() -> None:
    pytest.importorskip("autofuse.kernels.triton.launch")
    run = lambda x: x * float(x.detach().sum())  # a number that a tensor without data does not have
    device = torch.device("cuda", 1)
    assert rehearsal.compile_error(run, device, [torch.ones(4, requires_grad=True)], {}) == ""


def test_a_rehearsal_leaves_gradients_and_hooks_alone() -> None:
    x, seen = torch.ones(4, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        assert rehearsal.compile_error(lambda x: x.exp(), torch.device("cuda", 1), [x], {}) == ""
    assert x.grad is None and not seen
