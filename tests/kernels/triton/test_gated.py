"""The Triton kernels of gated activations, in Triton's interpreter, against the formula in double."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from autofuse.ops.activation_table import ACTIVATIONS, in_kernels
from tests.kernels.gates import Case, check_halves, check_product

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.gated")


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN, HALF])
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if in_kernels(name)])
def test_each_activation_is_a_gate_in_each_dtype(kernel: ModuleType, activation: str, dtype: torch.dtype) -> None:
    check_product(kernel, Case(5, 37, dtype, activation))


CASES = {
    "one row": Case(1, 64),
    "one column": Case(7, 1),
    "more rows than a tile": Case(70, 33, BRAIN),
    "wider than a tile": Case(3, 2048 + 77, activation="gelu"),
    "rows that are not next to each other": Case(6, 33, HALF, gap=7),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_and_strides(kernel: ModuleType, case: Case) -> None:
    check_product(kernel, case)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("case", [Case(5, 74), Case(3, 4500, BRAIN, "gelu_tanh"), Case(6, 34, HALF, "relu", gap=5)])
def test_halves_of_one_tensor_are_read_and_their_gradients_written_in_place(
    kernel: ModuleType, case: Case, gate_first: bool
) -> None:
    check_halves(kernel, case, gate_first)


@pytest.mark.parametrize("rows", [3, 32])
@pytest.mark.parametrize("hidden", [5, 37, 1367])
def test_two_tensors_of_an_odd_width(kernel: ModuleType, rows: int, hidden: int) -> None:
    check_product(kernel, Case(rows, hidden, BRAIN, "silu"))
    check_product(kernel, Case(rows, hidden, BRAIN, "gelu", gap=3))


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("width", [10, 74, 60, 2730, 32])
def test_halves_of_every_width_that_two_divides(kernel: ModuleType, width: int, gate_first: bool) -> None:
    check_halves(kernel, Case(3, width, BRAIN, "silu"), gate_first)
