"""autofuse.ops.rotary against its reference: both layouts, every width of the angles, and torch's wrappers."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from autofuse import ops
from autofuse.kernels import packages
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import reference
from tests.ops.operators import assert_frozen_parts_get_no_gradient, assert_works_everywhere

B, H, T, D = 2, 3, 5, 8
ANGLES = [(T, D), (B, 1, T, D), (T, D // 2), (B, 1, T, D // 2), (T, 1), (1,), ()]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
Agree = Callable[..., None]


@pytest.fixture(params=[0, 2**16], ids=["in few passes", "small"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors use the formula. With a threshold of 0 they count as large."""
    monkeypatch.setattr(sys.modules["autofuse.ops.rotary"], "_SMALL", request.param)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["autofuse.ops.rotary"], "_SMALL", 0)


def operands(angles: tuple[int, ...] = (T, D), dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, T, D).to(dtype), torch.randn(angles).to(dtype), torch.randn(angles).to(dtype)


def angles_of_pairs(interleaved: bool) -> tuple[Tensor, Tensor]:
    """cos and sin as models make them: the same angle for both entries of a pair."""
    half = torch.randn(T, D // 2)
    angles = half.repeat_interleave(2, -1) if interleaved else torch.cat((half, half), -1)
    return angles.cos(), angles.sin()


def rotate(f: Callable[..., Tensor], interleaved: bool) -> Callable[..., Tensor]:
    return lambda *a: f(*a, interleaved=interleaved)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angles", ANGLES)
def test_agrees_for_angles_of_every_shape(
    assert_agree: Agree, angles: tuple[int, ...], dtype: torch.dtype, interleaved: bool
) -> None:
    given = operands(angles, dtype)
    assert_agree(rotate(ops.rotary, interleaved), rotate(reference.rotary, interleaved), *given, terms=B * H * T * D)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["heads last", "every second", "a part from an odd place", "transposed"])
def test_agrees_in_every_layout_in_memory(assert_agree: Agree, layout: str, interleaved: bool) -> None:
    x = {
        "heads last": lambda: torch.randn(B, T, H, D).transpose(1, 2),
        "every second": lambda: torch.randn(B, H, T, 2 * D)[..., ::2],
        "a part from an odd place": lambda: torch.randn(B, H, T, D + 3)[..., 3:],
        "transposed": lambda: torch.randn(B, H, D, T).mT,
    }[layout]()
    cos, sin = angles_of_pairs(interleaved)
    # autograd makes leaves of what it is given, which keep their strides
    assert_agree(rotate(ops.rotary, interleaved), rotate(reference.rotary, interleaved), x, cos, sin, terms=B * H * T)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtypes", [(0, 1, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0)])
def test_the_result_has_the_dtype_to_which_the_operands_promote(dtypes: tuple[int, ...], interleaved: bool) -> None:
    of = (torch.bfloat16, torch.float32)
    given = [t.to(of[d]).requires_grad_() for t, d in zip(operands(), dtypes, strict=True)]
    result, expected = (rotate(f, interleaved)(*given) for f in (ops.rotary, reference.rotary))
    assert result.dtype is expected.dtype is torch.float32
    gradients = torch.autograd.grad(result.sum(), given)
    assert [g.dtype for g in gradients] == [t.dtype for t in given]


@pytest.mark.usefixtures("threshold")
def test_angles_may_be_of_a_larger_shape_than_x(assert_agree: Agree) -> None:
    x, cos, sin = torch.randn(1, T, D), torch.randn(H, 1, D), torch.randn(B, H, T, D)
    assert_agree(ops.rotary, reference.rotary, x, cos, sin, terms=B * H * T)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("interleaved", [False, True])
def test_has_gradients_of_gradients(interleaved: bool) -> None:
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 4), (3, 4), (3, 4)))
    assert torch.autograd.gradgradcheck(rotate(ops.rotary, interleaved), given)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("interleaved", [False, True])
def test_x_is_saved_for_backward_only_if_angles_require_gradients(interleaved: bool) -> None:
    x, cos, sin = operands()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ops.rotary(x.requires_grad_(), cos, sin, interleaved=interleaved)
        assert all(t.numel() < x.numel() for t in saved)
        ops.rotary(x, cos.requires_grad_(), sin, interleaved=interleaved)
    assert any(t.numel() == x.numel() for t in saved)


@pytest.mark.usefixtures("threshold")
def test_works_under_function_transforms_and_in_one_compiled_graph() -> None:
    x, cos, sin = operands()
    expected = reference.rotary(x, cos, sin)
    torch.testing.assert_close(torch.vmap(ops.rotary, (0, None, None))(x, cos, sin), expected)
    torch.testing.assert_close(
        torch.func.grad(lambda x: ops.rotary(x, cos, sin).square().sum())(x),
        torch.func.grad(lambda x: reference.rotary(x, cos, sin).square().sum())(x),
    )
    compiled = torch.compile(ops.rotary, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, cos, sin), expected)


class _Rotated(torch.nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ops.rotary(x, cos, sin, interleaved=True)


def test_can_be_exported() -> None:
    given = operands((T, D // 2))
    exported = torch.export.export(_Rotated(), given)
    torch.testing.assert_close(exported.module()(*given), reference.rotary(*given, interleaved=True))


@pytest.mark.usefixtures("large")
def test_can_be_traced_and_saved() -> None:
    given = operands()
    traced = torch.jit.trace(_Rotated(), given)
    torch.jit.save(traced, io.BytesIO())
    torch.testing.assert_close(traced(*given), reference.rotary(*given, interleaved=True))


def test_can_be_called_by_a_scripted_function() -> None:
    scripted = torch.jit.script(_Rotated())
    for angles in ((T, D), (T, D // 2)):
        given = operands(angles)
        torch.testing.assert_close(scripted(*given), reference.rotary(*given, interleaved=True))


# Kernels of our own, by the registered operator. Those of Triton are interpreted.


def by_kernel(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    result: Tensor = torch.ops.autofuse.rotation(x, cos, sin, False, inverse, "triton")
    return result


def test_the_operator_works_with_compilers_checkpoints_export_and_second_derivatives() -> None:
    pytest.importorskip("triton")
    x, cos, sin = (t.requires_grad_() for t in operands((T, D // 2)))
    assert_works_everywhere(by_kernel, reference.rotary, [x, cos, sin])
    assert_frozen_parts_get_no_gradient(by_kernel, reference.rotary, [x, cos, sin])


def test_the_operator_passes_torchs_own_checks() -> None:
    pytest.importorskip("triton")
    for interleaved in (False, True):
        x = torch.randn(B, T, H, D).transpose(1, 2).requires_grad_()
        for inverse in (False, True):
            given = (x, *angles_of_pairs(interleaved), interleaved, inverse, "triton")
            torch.library.opcheck(torch.ops.autofuse.rotation, given)


def test_the_gradient_of_a_rotation_back_is_the_rotation() -> None:
    pytest.importorskip("triton")
    x, cos, sin = (t.requires_grad_() for t in operands())
    forth = torch.autograd.grad(reference.rotary(x, cos, sin).sum(), x, create_graph=True)[0]
    expected = torch.autograd.grad(forth.square().sum(), (cos, sin))
    back = by_kernel(torch.ones_like(x), cos, sin, inverse=True)
    torch.testing.assert_close(back, forth)
    torch.testing.assert_close(torch.autograd.grad(back.square().sum(), (cos, sin)), expected)


@pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")
def test_large_calls_on_a_cpu_go_to_the_compiled_loop(assert_agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS["rotary"]
    monkeypatch.setattr(operation, "least", 0)
    monkeypatch.setattr(operation, "counts", {})
    x, (cos, sin) = torch.randn(B, T, H, D).bfloat16().transpose(1, 2), angles_of_pairs(False)
    cos, sin = cos.bfloat16(), sin.bfloat16()
    assert_agree(lambda x: ops.rotary(x, cos, sin), lambda x: reference.rotary(x, cos.to(x), sin.to(x)), x, terms=2)
    assert operation.counts == {"compiled": 1}


LEFT_TO_TORCH = {
    "angles that are learnt": (torch.randn(T, D), torch.randn(T, D).requires_grad_(), torch.randn(T, D)),
    "angles that are larger than x": (torch.randn(1, T, D), torch.randn(H, 1, D), torch.randn(T, D)),
    "a number": (torch.randn(T, D), torch.tensor(0.5), torch.randn(T, D)),
    "double angles": (torch.randn(T, D), torch.randn(T, D).double(), torch.randn(T, D)),
}


@pytest.mark.parametrize("given", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_torch_computes_calls_that_kernels_do_not_support(
    given: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = OPERATIONS["rotary"]
    monkeypatch.setattr(operation, "least", 0)
    monkeypatch.setattr(operation, "counts", {})
    torch.testing.assert_close(ops.rotary(*given), reference.rotary(*given))
    assert not operation.counts.keys() & {"compiled", "triton"}
    for name in ("compiled", "triton"):
        assert operation.provider(name).check(*given)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into pairs"):
        ops.rotary(torch.randn(T, 7), torch.randn(T, 7), torch.randn(T, 7))
    with pytest.raises(ValueError, match="a factor for each pair"):
        ops.rotary(torch.randn(T, D), torch.randn(T, 3), torch.randn(T, D))


class _Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(D, D)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return by_kernel(self.inner(x), cos, sin)


def test_a_layer_in_front_of_it_that_fsdp_shards_gets_its_gradient() -> None:
    pytest.importorskip("triton")
    given, whole = operands(), _Shifted()
    sharded = copy.deepcopy(whole)
    whole(*given).square().sum().backward()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        sharded(*given).square().sum().backward()
        made: Any = sharded.inner.weight.grad
        torch.testing.assert_close(made.full_tensor(), whole.inner.weight.grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("large")
def test_gradients_in_float64_equal_finite_differences() -> None:
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 4), (3, 4), (3, 4)))
    for interleaved in (False, True):
        assert torch.autograd.gradcheck(rotate(ops.rotary, interleaved), given)
