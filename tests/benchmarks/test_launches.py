"""The benchmark of Python per call: what it times is the path to our own kernels, and it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CODE = """
import torch
from autofuse.kernels.operation import OPERATIONS
from benchmarks import launches
before = {name: OPERATIONS[name].providers for name in launches.OPERATION_NAMES}
cpu = torch.device("cpu")
with launches.as_on_a_gpu(cpu):
    for operands, ways in launches.cases(False, cpu).values():
        results = ways["autofuse" if "autofuse" in ways else "torch"](*operands)
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.grad([r.sum() for r in results], operands)
for name in launches.OPERATION_NAMES:
    assert OPERATIONS[name].counts.get("triton", 0) > 0, name
    assert OPERATIONS[name].providers == before[name], name
"""


@pytest.mark.night
def test_every_operation_uses_our_kernel_and_then_its_previous_provider_again() -> None:
    """In a process of its own: in this one Triton may be set to interpret, which launches nothing."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
