"""The benchmark of Python per call: what it times is the path to our own kernels, and it leaves nothing behind."""

from __future__ import annotations

import os

import pytest
import torch

from autofuse.kernels.operation import OPERATIONS

pytest.importorskip("triton")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET", "0") == "1", reason="interpreted kernels are not launched")
def test_every_operation_goes_to_our_kernel_and_afterwards_to_whom_it_went_before() -> None:
    from benchmarks import launches

    before = {name: OPERATIONS[name].providers for name in launches.OPERATION_NAMES}
    counts = {name: OPERATIONS[name].counts.get("triton", 0) for name in launches.OPERATION_NAMES}
    with launches.without_launches():
        for x, ways in launches.cases(compiles=False).values():
            torch.autograd.grad(ways["autofuse" if "autofuse" in ways else "torch"](x).sum(), x)
    for name in launches.OPERATION_NAMES:
        assert OPERATIONS[name].counts.get("triton", 0) > counts[name]
        assert OPERATIONS[name].providers == before[name]
