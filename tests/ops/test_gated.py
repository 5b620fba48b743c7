"""autofuse.ops.gated_product and gated_activation against their references, and their operators in torch's wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference
from tests.ops.operators import assert_frozen_parts_get_no_gradient, assert_works_everywhere

B, T, HIDDEN = 2, 5, 12
Agree = Callable[..., None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"]


def leaf(*shape: int, **kwargs: Any) -> Tensor:
    return torch.randn(shape, **kwargs).requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gate_first", [True, False])
def test_gated_activation_agrees(assert_agree: Agree, gate_first: bool, activation: str, dtype: torch.dtype) -> None:
    run = lambda f: lambda *a: f(*a, activation=activation, gate_first=gate_first)
    x = torch.randn(B, T, 2 * HIDDEN).to(dtype)
    assert_agree(run(ops.gated_activation), run(reference.gated_activation), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", [((B, T, HIDDEN),) * 2, ((B, 1, HIDDEN), (1, T, 1)), ((0, 3), (0, 3)), ((), ())])
def test_gated_product_agrees(assert_agree: Agree, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    assert_agree(ops.gated_product, reference.gated_product, *(torch.randn(s).to(dtype) for s in shapes), terms=T)


def test_an_odd_width_and_an_unknown_activation_are_refused() -> None:
    with pytest.raises(ValueError, match="last dimension of 7"):
        ops.gated_activation(torch.randn(2, 7))
    with pytest.raises(ValueError, match="activation 'swish' is unknown"):
        ops.gated_product(torch.randn(2), torch.randn(2), activation="swish")


@pytest.fixture
def compile_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gated_product", "gated_activation"):
        monkeypatch.setattr(OPERATIONS[name], "least", 0)


LEFT_TO_TORCH = {
    "gates that broadcast": (leaf(4, 1, 8), leaf(1, 6, 8), "silu"),
    "two dtypes": (leaf(6, 8), leaf(6, 8, dtype=torch.bfloat16), "silu"),
    "a function": (leaf(6, 8), leaf(6, 8), lambda x: F.elu(x)),
    "a module": (leaf(6, 8), leaf(6, 8), torch.nn.PReLU()),
    "columns that are not next to each other": (leaf(8, 6).mT, leaf(8, 6).mT, "silu"),
    "rows that do not follow each other": (leaf(4, 6, 8).transpose(0, 1), leaf(4, 6, 8).transpose(0, 1), "silu"),
}


@pytest.mark.parametrize("call", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_torch_computes_calls_that_our_kernels_do_not_support(compile_all_sizes: None, call: Any) -> None:
    gate, up, activation = call
    operation = OPERATIONS["gated_product"]
    before = operation.counts.get("torch", 0)
    made = ops.gated_product(gate, up, activation=activation)
    assert operation.counts["torch"] == before + 1
    expected = ops.activation(gate, activation) * up
    assert torch.equal(made, expected) and made.dtype is expected.dtype


def test_torch_computes_float64_with_all_derivatives(compile_all_sizes: None) -> None:
    gate, up = leaf(3, 4, dtype=torch.float64), leaf(3, 4, dtype=torch.float64)
    for run in (ops.gated_product, reference.gated_product):
        assert gradcheck(run, (gate, up), check_forward_ad=True) and gradgradcheck(run, (gate, up))
    x = leaf(3, 8, dtype=torch.float64)
    for halves in (ops.gated_activation, reference.gated_activation):
        assert gradcheck(halves, (x,), check_forward_ad=True) and gradgradcheck(halves, (x,))


def test_torch_computes_calls_under_torch_func(compile_all_sizes: None) -> None:
    gate, up = torch.randn(4, 3, 8), torch.randn(4, 3, 8)
    assert torch.allclose(torch.vmap(ops.gated_product)(gate, up), F.silu(gate) * up)
    _, tangent = torch.func.jvp(lambda g: ops.gated_product(g, up), (gate,), (torch.ones_like(gate),))
    _, expected = torch.func.jvp(lambda g: F.silu(g) * up, (gate,), (torch.ones_like(gate),))
    assert torch.allclose(tangent, expected)


# Operators, by Triton's interpreter.


def product_of(activation: str) -> Callable[..., Tensor]:
    return lambda gate, up: torch.ops.autofuse.gated(gate, up, activation, "triton")


def halves_of(activation: str, gate_first: bool) -> Callable[..., Tensor]:
    return lambda x: torch.ops.autofuse.gated_halves(x, activation, gate_first, "triton")


def test_the_operator_of_two_tensors_works_under_torchs_wrappers() -> None:
    pytest.importorskip("triton")
    formula = lambda gate, up: F.gelu(gate) * up
    assert_works_everywhere(product_of("gelu"), formula, [leaf(2, 3, 20), leaf(2, 3, 20)])
    assert_frozen_parts_get_no_gradient(product_of("gelu"), formula, [leaf(2, 3, 20), leaf(2, 3, 20)])
    strided = [leaf(6, 24)[:, :20], leaf(20, 6).t()]
    torch.library.opcheck(torch.ops.autofuse.gated, (*strided, "silu", "triton"))


def test_the_operator_of_halves_works_under_torchs_wrappers() -> None:
    pytest.importorskip("triton")
    formula = lambda x: x[..., :20] * F.silu(x[..., 20:])
    assert_works_everywhere(halves_of("silu", False), formula, [leaf(2, 3, 40)])
    torch.library.opcheck(torch.ops.autofuse.gated_halves, (leaf(6, 48)[:, :40], "silu", True, "triton"))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (1, 8)])
def test_operators_accept_empty_tensors(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    x, gate = leaf(*shape), leaf(*shape)
    (made,) = torch.autograd.grad(halves_of("silu", True)(x).sum(), x)
    assert made.shape == shape
    assert torch.autograd.grad(product_of("silu")(gate, x).sum(), gate)[0].shape == shape
