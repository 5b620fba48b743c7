"""autofuse.ops.layer_norm and rms_norm against their references: what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.packages import COMPILER
from autofuse.ops import reference

B, T, C = 2, 5, 16
Agree = Callable[..., None]
NORMS = [(ops.layer_norm, reference.layer_norm), (ops.rms_norm, reference.rms_norm)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(C,), (T, C), (B, T, C), (1, 2 * C), (0, C)])
@pytest.mark.parametrize("norm, plain", NORMS)
def test_agrees_in_every_dtype_and_shape(
    assert_agree: Agree, norm: Any, plain: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.rand(shape[-1], dtype=dtype)
    assert_agree(norm, plain, x, weight, terms=C + B * T)


AFFINES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "none": lambda: (None, None),
    "a weight only": lambda: (torch.rand(C), None),
    "a bias only": lambda: (None, torch.randn(C)),
    "numbers": lambda: (2.0, 1),
    "a weight and a number": lambda: (torch.rand(C), 0.5),
    "tensors of no dimension": lambda: (torch.tensor(2.0), torch.tensor(0.5)),
    "tensors of one entry": lambda: (torch.rand(1), torch.randn(1)),
    "leading dimensions of one": lambda: (torch.rand(1, 1, C), torch.randn(1, C)),
    "more dimensions than x": lambda: (torch.rand(1, 1, 1, C), torch.randn(C)),
    "one for each row": lambda: (torch.rand(T, 1), torch.randn(B, 1, 1)),
    "one for each sample": lambda: (torch.rand(B, 1, C), torch.randn(B, 1, C)),
    "double": lambda: (torch.rand(C).double(), None),
}


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_weight_and_bias_may_have_any_shape_that_broadcasts(assert_agree: Agree, affine: Any) -> None:
    weight, bias = affine()
    x = torch.randn(B, T, C)
    assert_agree(ops.layer_norm, reference.layer_norm, x, weight, bias, terms=C + B * T * C)
    assert_agree(ops.rms_norm, reference.rms_norm, x, weight, terms=C + B * T * C)


@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm, plain", NORMS)
def test_the_result_has_the_dtype_of_hand_written_code(
    norm: Any, plain: Any, x: torch.dtype, weight: torch.dtype
) -> None:
    given = torch.randn(T, C, dtype=x), torch.rand(C, dtype=weight)
    assert norm(*given).dtype is plain(*given).dtype is torch.promote_types(x, weight)


def test_an_ordinary_norm_is_one_kernel() -> None:
    x, weight, bias = torch.randn(T, C), torch.rand(1, C), torch.randn(C)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.layer_norm(x, weight, bias)
    assert not {"aten::mul", "aten::add"} & {e.key for e in profile.key_averages()}


def test_a_single_channel_is_its_own_mean() -> None:
    x, bias = torch.randn(T, 1), torch.randn(1)
    assert torch.equal(ops.layer_norm(x, torch.rand(1), bias), bias.expand(T, 1))


def test_large_halves_do_not_overflow() -> None:
    x = torch.full((1, C), 1000.0, dtype=torch.float16)
    assert torch.equal(ops.rms_norm(x), torch.ones_like(x))


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_compiles_into_one_graph(affine: Any) -> None:
    torch.compiler.reset()
    weight, bias = affine()

    def norms(x: Tensor) -> tuple[Tensor, ...]:
        pair = ops.dropout_add_norm(x, x, weight, bias, prenorm=True)
        return ops.layer_norm(x, weight, bias), ops.rms_norm(x, weight), *pair

    x = torch.randn(B, T, C)
    compiled = torch.compile(norms, fullgraph=True, backend="eager")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(compiled(x), norms(x), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_calls_under_autocast_equal_torchs(dtype: torch.dtype) -> None:
    x, weight = torch.randn(256, 1024, dtype=dtype), torch.rand(1024)
    for norm in (ops.layer_norm, ops.rms_norm):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            found, small = norm(x, weight), norm(x[:2], weight)
        bound = 2 * torch.finfo(dtype).eps * small.abs().max()  # hand-written code rounds before it multiplies
        assert found.dtype is small.dtype and (found[:2] - small).abs().max() <= bound


@pytest.mark.parametrize(
    "norm, name, native", [(ops.layer_norm, "layer_norm", F.layer_norm), (ops.rms_norm, "rms_norm", F.rms_norm)]
)
def test_half_precision_without_gradients_uses_our_loop(norm: Any, name: str, native: Any) -> None:
    x, weight = torch.randn(4, 64, 1024).bfloat16(), torch.rand(1024).bfloat16()
    before = OPERATIONS[name].counts.get("compiled", 0)
    with torch.inference_mode():
        found = norm(x, weight, eps=1e-5)
    assert OPERATIONS[name].counts.get("compiled", 0) == before + 1 or COMPILER.missing()
    truth = native(x.double(), (1024,), weight.double(), eps=1e-5)
    assert (found - truth).abs().max() <= torch.finfo(x.dtype).eps * truth.abs().max()


def _third(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(lambda a: f(a).pow(3).sum())))(x)


def _of_forward_mode(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.grad(lambda a: torch.func.jvp(lambda b: f(b).pow(3).sum(), (a,), (a.cos(),))[1])(x)


@pytest.mark.parametrize("derivative", [_third, _of_forward_mode])
def test_nested_transforms_have_the_derivatives_of_the_formula(derivative: Callable[..., Tensor]) -> None:
    x, weight, bias = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    expected = derivative(lambda a: reference.layer_norm(a, weight, bias), x)
    torch.testing.assert_close(derivative(lambda a: ops.layer_norm(a, weight, bias), x), expected)
