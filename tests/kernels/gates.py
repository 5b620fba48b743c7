"""Activations, with a bias or as gates, for the tests of kernels: forward and backward against torch's own in double.

torch's own decides what the slope is at a kink, which tests in 16 bits do hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.ops.elementwise import BY_TORCH

# Zero, where formulas change, where they saturate, and the ends of float32.
POINTS = torch.tensor([0.0, -3.0, 3.0, 1e-30, -1e-30, 19.9, 20.1, -20.1, 60.0, -60.0, 1e30, -1e30])


@dataclass(frozen=True)
class Case:
    """Random operands of (rows, hidden)."""

    rows: int
    hidden: int
    dtype: torch.dtype = torch.float32
    activation: str = "silu"
    gap: int = 0  # columns between one row's end and the next one's start
    bias_dtype: torch.dtype | None = None

    def operand(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.rows * self.hidden + number)
        return torch.randn(self.rows, self.hidden + self.gap, generator=generator).to(self.dtype)[:, : self.hidden]


def check_product(kernel: Any, case: Case) -> None:
    """Checks two tensors."""
    gate, up, given = (case.operand(i) for i in range(3))
    found = kernel.forward(gate, up, case.activation), *kernel.backward(given, gate, up, case.activation)
    doubles = [t.double().requires_grad_() for t in (gate, up)]
    result = BY_TORCH[case.activation](doubles[0]) * doubles[1]
    expected = result, *torch.autograd.grad(result, doubles, given.double())
    _assert_close(found, expected)
    assert all(t.dtype is case.dtype and t.is_contiguous() for t in found)


def check_halves(kernel: Any, case: Case, gate_first: bool) -> None:
    """Of the halves of one: `hidden` is the width of both."""
    x, given = case.operand(0), case.operand(1)[:, : case.hidden // 2]
    found = (
        kernel.packed_forward(x, case.activation, gate_first),
        kernel.packed_backward(given, x, case.activation, gate_first),
    )
    double = x.double().requires_grad_()
    gate, up = double.chunk(2, -1) if gate_first else reversed(double.chunk(2, -1))
    result = BY_TORCH[case.activation](gate) * up
    _assert_close(found, (result, *torch.autograd.grad(result, double, given.double())))


def check_biased(kernel: Any, case: Case, with_bias: bool = True) -> None:
    """Checks x and a bias."""
    x, given = case.operand(0), case.operand(1)
    bias = case.operand(2)[0].contiguous().to(case.bias_dtype or case.dtype) if with_bias else None
    made = kernel.forward(x, bias, case.activation)
    of_x, of_bias = kernel.backward(given, x, bias, case.activation, with_bias)
    doubles = [t.double().requires_grad_() for t in (x, bias) if t is not None]
    result = BY_TORCH[case.activation](sum(doubles))  # type: ignore[arg-type]
    expected = torch.autograd.grad(result, doubles, given.double())
    _assert_close((made, of_x), (result, expected[0]))
    assert made.dtype is (x.dtype if bias is None else torch.promote_types(x.dtype, bias.dtype))
    if bias is not None:
        assert of_bias.dtype is bias.dtype
        _assert_close((of_bias,), (expected[1],), terms=case.rows, eps=torch.finfo(case.dtype).eps)


def _assert_close(
    found: tuple[Tensor, ...], expected: tuple[Tensor, ...], terms: int = 1, eps: float | None = None
) -> None:
    """Formulas round about four times, by a unit in the last place of the largest entry; sums as the root of terms."""
    for result, truth in zip(found, expected, strict=True):
        unit = max(torch.finfo(result.dtype).eps, eps or 0.0)
        bound = 4 * terms**0.5 * unit * truth.abs().max().clamp(min=1.0)
        assert result.shape == truth.shape and (result.double() - truth).abs().max() <= bound
