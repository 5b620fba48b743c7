"""The Triton kernels of activations and biases, in Triton's interpreter, against the formula in double."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from autofuse.ops.activation_table import ACTIVATIONS, in_kernels
from tests.kernels.gates import POINTS, Case, check_biased

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.activations")


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN, HALF])
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if in_kernels(name)])
def test_each_activation_of_a_sum_in_each_dtype(kernel: ModuleType, activation: str, dtype: torch.dtype) -> None:
    check_biased(kernel, Case(5, 37, dtype, activation))


CASES = {
    "one row": Case(1, 64, activation="gelu"),
    "one column": Case(7, 1, activation="gelu"),
    "more rows than a tile": Case(150, 33, activation="gelu"),
    "wider than a tile": Case(3, 2048 + 77, BRAIN, "gelu_tanh"),
    "rows that are not next to each other": Case(6, 33, HALF, "gelu", gap=7),
    "a bias in fp32": Case(5, 40, BRAIN, "gelu", bias_dtype=SINGLE),
    "a bias in bf16": Case(5, 40, SINGLE, "gelu", bias_dtype=BRAIN),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_strides_and_dtypes(kernel: ModuleType, case: Case) -> None:
    check_biased(kernel, case)


def test_a_bias_may_be_left_out(kernel: ModuleType) -> None:
    check_biased(kernel, Case(5, 37, activation="mish"), with_bias=False)


def test_the_bias_gradient_is_repeatable_and_left_out_if_not_needed(kernel: ModuleType) -> None:
    x, given, bias = torch.randn(300, 24), torch.randn(300, 24), torch.randn(24)
    first, second = (kernel.backward(given, x, bias, "gelu", True)[1] for _ in range(2))
    assert torch.equal(first, second)
    assert kernel.backward(given, x, bias, "gelu", False)[1] is None


def test_the_backward_pass_computes_the_activation_again(kernel: ModuleType) -> None:
    x, given, bias = torch.randn(9, 24), torch.randn(9, 24), torch.randn(24)
    of_x, of_bias, value = kernel.backward_again(given, x, bias, "gelu", True)
    assert torch.equal(value, kernel.forward(x, bias, "gelu"))
    assert torch.equal(of_x, kernel.backward(given, x, bias, "gelu", True)[0]) and of_bias.shape == (24,)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if in_kernels(name)])
def test_finite_inputs_never_give_nan(kernel: ModuleType, activation: str) -> None:
    x = POINTS[None, :].contiguous()
    made = kernel.forward(x, None, activation), kernel.backward(torch.ones_like(x), x, None, activation, False)[0]
    assert not any(t.isnan().any() for t in made)


@pytest.mark.parametrize("activation", ["relu", "relu_squared", "gelu", "silu"])
def test_nan_stays_nan(kernel: ModuleType, activation: str) -> None:
    assert kernel.forward(torch.full((1, 4), torch.nan), None, activation).isnan().all()


@pytest.mark.parametrize("dtype", [BRAIN, HALF])
def test_the_tail_of_the_exact_gelu_keeps_the_digits_of_halves(kernel: ModuleType, dtype: torch.dtype) -> None:
    """Relative to the value, from which torch's own 0.5 * (1 + erf) takes all digits below -5."""
    x = torch.linspace(-5.0, 8.0, 4096).to(dtype).view(4, 1024)
    truth = x.double() * torch.special.ndtr(x.double())
    found = kernel.forward(x, None, "gelu").double()
    normal = truth.abs() > 10 * torch.finfo(dtype).tiny
    assert ((found - truth).abs() <= (torch.finfo(dtype).eps * 1.1) * truth.abs())[normal].all()


def test_the_exact_gelu_of_float32_has_its_digits(kernel: ModuleType) -> None:
    x = torch.linspace(-8.0, 8.0, 4096).view(4, 1024)
    truth = x.double() * torch.special.ndtr(x.double())
    assert ((kernel.forward(x, None, "gelu") - truth).abs() <= 4e-7 * truth.abs().clamp(min=1.0)).all()


SHAPES = {"odd in both": (3, 5), "16 in all": (16, 3), "many odd rows": (64, 37), "wide and odd": (32, 2049)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("gap", [0, 3])
def test_contiguous_rows_of_an_odd_width_are_read_with_another_width(
    kernel: ModuleType, shape: tuple[int, int], gap: int
) -> None:
    check_biased(kernel, Case(*shape, BRAIN, "mish", gap=gap), with_bias=False)


@pytest.mark.parametrize(
    ("shape", "contiguous", "expected"),
    [
        ((64, 37), True, (37, 64)), ((3, 5), True, (3, 5)), ((64, 37), False, (64, 37)), ((5, 48), True, (5, 48)),
        ((32, 1027), True, (1027, 32)), ((4096, 3), True, (12, 1024)), ((16, 1), True, (1, 16)),
    ],
)  # fmt: skip
def test_only_contiguous_tensors_get_another_width(
    kernel: ModuleType, shape: tuple[int, int], contiguous: bool, expected: tuple[int, int]
) -> None:
    x = torch.empty(shape) if contiguous else torch.empty(shape[0], shape[1] + 1)[:, :-1]
    made = kernel.evened(x, torch.empty(shape))
    assert all(t.shape == expected for t in made) and made[0].data_ptr() == x.data_ptr()
