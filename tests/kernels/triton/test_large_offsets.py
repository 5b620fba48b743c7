"""Rows that are 2**31 entries apart are read correctly: no kernel computes an address in 32 bits."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
BRAIN = torch.bfloat16
STEPS = {"the third row": 2**30, "the second row, in units of 16": 2**31 + 16, "the second row, odd": 2**31 + 3}


def _far(step: int, rows: int, width: int) -> Tensor:
    """Rows of made-up numbers, `step` entries from each other."""
    memory = torch.empty(step * (rows - 1) + width, dtype=BRAIN)
    x = memory.as_strided((rows, width), (step, 1))
    return x.copy_(torch.randn(rows, width, generator=torch.Generator().manual_seed(width)))


def _run_gated(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    return kernel.forward(x, x, "silu"), *kernel.backward(x, x, x, "silu")


def _run_packed(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    width = x.shape[1] // 2
    return kernel.packed_forward(x, "silu", True), kernel.packed_backward(x[:, :width], x, "silu", True)


def _run_activation(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    bias = torch.ones(x.shape[1], dtype=BRAIN)
    return kernel.forward(x, bias, "gelu"), *kernel.backward_again(x, x, bias, "gelu", True)


def _run_norm(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    weight, seed = torch.ones(x.shape[1], dtype=BRAIN), torch.tensor([7])
    out, total, mean, rstd = kernel.forward(x, x, weight, weight, seed, 0.1, 1e-5, True, BRAIN, BRAIN)
    made = kernel.backward(x, x, x, weight, mean, rstd, seed, 0.1, BRAIN, BRAIN, True, True)
    return out, total, mean, rstd, *made


def _run_loss(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    target, share = torch.arange(x.shape[0]) + 3, torch.ones(x.shape[0])
    losses, normalizers = kernel.losses(x, target, None, -100, 0.1)
    return losses, normalizers, kernel.gradient(x, target, None, share, normalizers, -100, 0.1)


def _run_softmax(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    made = kernel.forward(x, x, 0.5, -math.inf)
    return made, kernel.backward(x, x, x > 0, 0.5)


def _run_rotary(kernel: ModuleType, x: Tensor) -> tuple[Tensor, ...]:
    angles = torch.randn(x.shape[0], x.shape[1], generator=torch.Generator().manual_seed(0)).to(BRAIN)
    kernel._plan.cache_clear()  # a plan contains whether rows need 64 bits
    pair = kernel.forward_pair(x, x[:1], angles[:1], angles[:1], False, False, BRAIN)
    kernel._plan.cache_clear()
    return *(kernel.forward(x, angles, x, interleaved, False, BRAIN) for interleaved in (False, True)), *pair


Step = Callable[[ModuleType, Tensor], tuple[Tensor, ...]]
KERNELS: dict[str, tuple[str, Step]] = {
    "gated products": ("gated", _run_gated),
    "gated halves": ("gated", _run_packed),
    "activations": ("activations", _run_activation),
    "norms": ("norm", _run_norm),
    "norms of long rows": ("norm", _run_norm),
    "cross entropy": ("cross_entropy", _run_loss),
    "softmax": ("softmax", _run_softmax),
    "softmax of long rows": ("softmax", _run_softmax),
    "rotary embeddings": ("rotary", _run_rotary),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", KERNELS)
def test_distant_rows_are_read_correctly(name: str, step: int) -> None:
    file, run = KERNELS[name]
    kernel = importlib.import_module(f"autofuse.kernels.triton.{file}")
    x = _far(step, 3 if step < 2**31 else 2, 8200 if "long" in name else 36)
    found, expected = run(kernel, x), run(kernel, x.contiguous())
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-5)  # sums may be taken in another order


@pytest.mark.parametrize("rows", ["softmax", "rotary"])
def test_64_bit_row_numbers_give_the_same(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = importlib.import_module(f"autofuse.kernels.triton.{rows}")
    run = _run_softmax if rows == "softmax" else _run_rotary
    x = torch.randn(5, 36).to(BRAIN)
    expected = run(kernel, x)
    monkeypatch.setattr(kernel, "is_long", lambda rows: True)
    assert all(torch.equal(a, b) for a, b in zip(run(kernel, x), expected, strict=True))
