"""Activations as compiled loops compute them, against the formula in double."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofuse.kernels.compiled import activations as kernel
from autofuse.ops import reference
from autofuse.ops.activation_table import ACTIVATIONS, in_kernels
from autofuse.ops.elementwise import BY_TORCH
from tests.kernels.gates import POINTS, Case, check_biased

FORMULAS = [name for name in ACTIVATIONS if in_kernels(name)]
GRID = torch.cat((torch.linspace(-12, 12, 2001), torch.tensor([1e-4, -1e-4, 30.0, -30.0])))


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_slopes_equal_the_formula(name: str) -> None:
    """Roundings, of which a cube has a few more, are by a unit in the last place of what is multiplied, at most |x|."""
    double = GRID.double().requires_grad_()
    expected = BY_TORCH[name](double)
    (slope,) = torch.autograd.grad(expected.sum(), double)
    bound = 8 * torch.finfo(torch.float32).eps * GRID.abs().clamp(min=1.0)
    value, found = kernel.value_and_slope(GRID, name)
    assert torch.allclose(kernel.value(GRID, name), value, atol=1e-6)
    assert ((value - expected).abs() <= bound * expected.abs().clamp(min=1.0)).all()
    assert ((found - slope).abs() <= bound).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_finite_inputs_never_give_nan(name: str) -> None:
    assert not any(t.isnan().any() for t in kernel.value_and_slope(POINTS, name))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish", "quick_gelu"])
def test_the_tail_keeps_its_digits(name: str) -> None:
    """Far to the left an activation vanishes; what it is there is no difference of numbers near 1.

    The series of the exact GELU is good to half a unit in the last place of bf16 there; torch's loses all digits.
    """
    x = torch.linspace(-5, -3, 101)
    truth = _exactly(x.double(), name)
    assert ((kernel.value(x, name) - truth) / truth).abs().max() < (2**-9 if name == "gelu" else 1e-4)


def _exactly(x: Tensor, name: str) -> Tensor:
    return x * torch.special.ndtr(x) if name == "gelu" else reference.activation(x, name)


def test_compiled_with_a_bias() -> None:
    check_biased(kernel, Case(40, 37, torch.bfloat16, "gelu", gap=3, bias_dtype=torch.float32))


def test_compiled_without_a_bias_for_any_width() -> None:
    for hidden in (40, 56):
        check_biased(kernel, Case(128, hidden, torch.float32, "mish"), with_bias=False)
    assert len(kernel._forward._compilations) == 1
