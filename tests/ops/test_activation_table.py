"""autofuse.ops.activation_table: an activation's declarations are true."""

from __future__ import annotations

import pytest
import torch

from autofuse import ops
from autofuse.ir.vocabulary import OUR_ACTIVATIONS
from autofuse.kernels.compiled import activations as compiled
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops.activation_table import ACTIVATIONS, in_kernels
from autofuse.ops.activations import FUNCTIONS, activation_refusal

WITHOUT_FORMULA = [name for name in ACTIVATIONS if not in_kernels(name)]


def test_every_activation_of_ours_is_a_function_and_is_listed() -> None:
    assert OUR_ACTIVATIONS.keys() <= FUNCTIONS.keys() and FUNCTIONS.keys() <= set(ops.__all__)
    assert OUR_ACTIVATIONS.keys() <= OPERATIONS.keys() & ACTIVATIONS.keys()
    assert all(OPERATIONS[name] is ACTIVATIONS[name] for name in OUR_ACTIVATIONS)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if in_kernels(name)])
def test_our_kernels_have_the_declared_formulas(name: str) -> None:
    x = torch.linspace(-3, 3, 31)
    torch.testing.assert_close(compiled.value(x, name), ops.activation(x, name), atol=1e-6, rtol=1e-5)
    assert activation_refusal(name) == ""


@pytest.mark.parametrize("name", WITHOUT_FORMULA)
def test_our_kernels_refuse_an_activation_without_a_formula_and_torch_computes_it(name: str) -> None:
    assert "do not have the activation" in activation_refusal(name) and name not in compiled._FORMULAS
    gate, up = torch.randn(1024, 1024), torch.randn(1024, 1024)
    kinds = OPERATIONS["gated_product"].taker(gate, up, activation=name)
    assert kinds.name == "torch"
    torch.testing.assert_close(ops.gated_product(gate, up, activation=name), ops.activation(gate, name) * up)
    assert not OPERATIONS[name].has_choice and OPERATIONS[name].taker(gate).name == "torch"
