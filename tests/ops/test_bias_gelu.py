"""autofuse.ops.bias_gelu against its reference, and its operator under torch's wrappers."""

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

Agree = Callable[..., None]


def leaf(*shape: int, **kwargs: Any) -> Tensor:
    return torch.randn(shape, **kwargs).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape, bias", [((2, 5, 12), (12,)), ((2, 5, 12), (5, 1)), ((0, 4), (4,)), ((4,), (4,))])
def test_it_agrees(
    assert_agree: Agree, shape: tuple[int, ...], bias: tuple[int, ...], approximate: str, dtype: torch.dtype
) -> None:
    given = torch.randn(shape).to(dtype), torch.randn(bias).to(dtype)
    run = lambda f: lambda *a: f(*a, approximate=approximate)
    assert_agree(run(ops.bias_gelu), run(reference.bias_gelu), *given, terms=10)


def test_it_has_the_derivatives_of_its_reference() -> None:
    given = leaf(3, 4, dtype=torch.float64), leaf(4, dtype=torch.float64)
    for run in (ops.bias_gelu, reference.bias_gelu):
        assert gradcheck(run, given, check_forward_ad=True) and gradgradcheck(run, given)


def test_another_approximation_is_refused() -> None:
    with pytest.raises(RuntimeError, match="approximate"):
        ops.bias_gelu(torch.ones(2), torch.ones(2), "sigmoid")


def by_triton(x: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.autofuse.biased(x, bias, "gelu", "triton")


def test_the_operator_works_under_torchs_wrappers() -> None:
    pytest.importorskip("triton")
    formula = lambda x, bias: F.gelu(x + bias)
    assert_works_everywhere(by_triton, formula, [leaf(2, 3, 20), leaf(20)])
    assert_frozen_parts_get_no_gradient(by_triton, formula, [leaf(2, 3, 20), leaf(20)])
    torch.library.opcheck(torch.ops.autofuse.biased, (leaf(6, 24)[:, :20], leaf(20), "gelu", "triton"))
    torch.library.opcheck(torch.ops.autofuse.biased, (leaf(20, 6).t(), None, "mish", "triton"))


def test_the_operator_accepts_empty_tensors() -> None:
    pytest.importorskip("triton")
    x, bias = leaf(0, 8), leaf(8)
    of_x, of_bias = torch.autograd.grad(by_triton(x, bias).sum(), (x, bias))
    assert of_x.shape == (0, 8) and torch.equal(of_bias, torch.zeros(8))


def test_dtypes_promote_as_in_a_sum() -> None:
    pytest.importorskip("triton")
    x, bias = leaf(3, 8, dtype=torch.bfloat16), leaf(8)
    results = []
    for run in (by_triton, lambda x, bias: F.gelu(x + bias)):
        made = run(x, bias)
        results.append((made, *torch.autograd.grad(made.sum(), (x, bias))))
    assert [t.dtype for t in results[0]] == [t.dtype for t in results[1]]


LEFT_TO_TORCH = {
    "a bias for each row": (leaf(3, 8), leaf(3, 1), "none"),
    "a bias in double": (leaf(3, 8), leaf(8, dtype=torch.float64), "none"),
    "a bias with gaps": (leaf(3, 8), leaf(16)[::2], "none"),
    "another approximation": (leaf(3, 8), leaf(8), "sigmoid"),
    "rows that do not follow each other": (leaf(3, 2, 8).transpose(0, 1), leaf(8), "none"),
}


@pytest.mark.parametrize("call", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_torch_computes_calls_that_our_kernels_do_not_support(call: Any) -> None:
    assert OPERATIONS["bias_gelu"].provider("compiled").check(*call) != ""


def test_torch_computes_the_exact_gelu_in_16_bits() -> None:
    x, bias = leaf(3, 8, dtype=torch.bfloat16), leaf(8, dtype=torch.bfloat16)
    check = OPERATIONS["bias_gelu"].provider("compiled").check
    assert check(x, bias) != "" and check(x, bias, "tanh") == "" and check(x.float(), bias) == ""
