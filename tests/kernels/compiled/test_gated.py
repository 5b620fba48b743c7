"""The compiled loops of gated activations against the formula in double."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from autofuse.kernels.compiled import gated as kernel
from tests.kernels.gates import Case, check_halves, check_product


def test_two_tensors_agree() -> None:
    check_product(kernel, Case(40, 33, torch.bfloat16, gap=5))


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_halves_agree(activation: str, gate_first: bool) -> None:
    """What is compiled, as it is written."""
    written = SimpleNamespace(
        packed_forward=kernel.packed_forward.function, packed_backward=kernel.packed_backward.function
    )
    check_halves(written, Case(40, 74, torch.float32, activation, gap=5), gate_first)


def test_compiled_halves_agree() -> None:
    check_halves(kernel, Case(40, 74, torch.bfloat16, gap=5), gate_first=False)
