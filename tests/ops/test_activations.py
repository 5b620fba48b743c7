"""autofuse.ops.gelu, silu and activation against their references."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.activation_table import ACTIVATIONS

Agree = Callable[..., None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_agrees_in_every_dtype(assert_agree: Agree, name: str, dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-8, 8, 101), torch.tensor([1e-4, 30.0, -30.0]))).to(dtype)
    assert_agree(lambda x: ops.activation(x, name), lambda x: reference.activation(x, name), x, terms=4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_takes_its_approximation(assert_agree: Agree, approximate: str) -> None:
    x = torch.randn(64)
    assert_agree(lambda x: ops.gelu(x, approximate), lambda x: reference.gelu(x, approximate), x, terms=4)
    assert torch.equal(ops.gelu(x, approximate), ops.activation(x, {"none": "gelu", "tanh": "gelu_tanh"}[approximate]))
    assert torch.equal(ops.gelu_tanh(x), ops.gelu(x, "tanh"))


def test_silu_is_the_activation_of_that_name() -> None:
    x = torch.randn(64)
    assert torch.equal(ops.silu(x), ops.activation(x, "silu"))


@pytest.mark.parametrize("options", [{}, {"beta": 2.0}, {"threshold": 1.0}, {"beta": 0.5, "threshold": 3.0}])
def test_softplus_takes_its_sharpness_and_threshold(assert_agree: Agree, options: dict[str, float]) -> None:
    x = torch.cat((torch.linspace(-30, 30, 101), torch.tensor([1e4, -1e4])))
    assert_agree(lambda x: ops.softplus(x, **options), lambda x: reference.softplus(x, **options), x, terms=4)
    assert ops.softplus(x).isfinite().all()


def test_extreme_inputs_give_finite_or_infinite_results_as_the_formula_does() -> None:
    x = torch.tensor([-math.inf, -1e30, 0.0, 1e30])
    for name in ("gelu", "gelu_tanh", "silu"):
        result = ops.activation(x[1:], name)
        assert torch.equal(result, torch.tensor([0.0, 0.0, 1e30])), name


def test_an_unknown_activation_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"activation 'swish' is unknown.*silu"):
        ops.activation(torch.ones(1), "swish")
