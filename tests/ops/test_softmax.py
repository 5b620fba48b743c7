"""autofuse.ops.masked_softmax against its reference: both kinds of masks, scales, and torch's wrappers."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from functools import partial
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

B, H, T, S = 2, 3, 4, 5
Agree = Callable[..., None]


@pytest.fixture(autouse=True, params=[0, 2**17], ids=["in few passes", "small"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors use the formula. With a threshold of 0 they count as large."""
    monkeypatch.setattr(sys.modules["autofuse.ops.softmax"], "_SMALL", request.param)


def scores(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, H, T, S).to(dtype)


def boolean_mask(*shape: int) -> Tensor:
    found = torch.rand(shape) > 0.4
    found[..., 0] = True
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(T, S), (B, 1, T, S), (B, 1, 1, S), (B, H, T, S), (1, H, 1, S)])
@pytest.mark.parametrize("fill", [None, -1e4])
def test_agrees_for_boolean_masks(
    assert_agree: Agree, dtype: torch.dtype, shape: tuple[int, ...], fill: float | None
) -> None:
    given = {"mask": boolean_mask(*shape), "scale": 0.3, "fill": fill}
    both = (partial(f.masked_softmax, **given) for f in (ops, reference))
    assert_agree(*both, scores(dtype), terms=S)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(T, S), (B, 1, 1, S), (H, T, S)])
def test_an_added_mask_and_a_scale_that_is_a_tensor_get_their_gradients(
    assert_agree: Agree, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    def run(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, mask, scale: f(x, mask, scale=scale)

    operands = (scores(dtype), torch.randn(shape).to(dtype), torch.rand(H, 1, 1).to(dtype))
    assert_agree(run(ops.masked_softmax), run(reference.masked_softmax), *operands, terms=B * H * T * S)


def test_without_a_mask_it_is_softmax(assert_agree: Agree) -> None:
    assert_agree(ops.masked_softmax, lambda x: torch.softmax(x, -1), scores(), terms=S)


def test_rows_that_keep_nothing_equal_torchs() -> None:
    mask = torch.zeros(T, S, dtype=torch.bool)
    assert ops.masked_softmax(scores(), mask).isnan().all()
    even, x = torch.full((), 1 / S), scores().requires_grad_()
    filled = ops.masked_softmax(x, mask, fill=-1e9)
    torch.testing.assert_close(filled, even.expand_as(filled))
    filled.square().sum().backward()
    assert x.grad is not None and not x.grad.any()  # the fill hides the scores


def test_a_row_that_keeps_nothing_passes_no_nan_to_the_scores() -> None:
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[0] = False
    x = scores().requires_grad_()
    ops.masked_softmax(x, mask).nan_to_num(0.0).square().sum().backward()
    exact = x.detach().clone().requires_grad_()
    torch.softmax(exact.masked_fill(~mask, float("-inf")), -1).nan_to_num(0.0).square().sum().backward()
    torch.testing.assert_close(x.grad, exact.grad)


def test_a_mask_that_is_larger_than_the_scores_broadcasts_them(assert_agree: Agree) -> None:
    mask = boolean_mask(B, 1, T, S)
    both = (partial(f.masked_softmax, mask=mask, scale=2.0) for f in (ops, reference))
    assert_agree(*both, torch.randn(H, T, S), terms=B * S)


def test_it_compiles_into_one_graph_exports_and_works_under_vmap() -> None:
    x, mask = scores(), boolean_mask(T, S)
    expected = reference.masked_softmax(x, mask, scale=0.5)
    run = partial(ops.masked_softmax, mask=mask, scale=0.5)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.vmap(run)(x), expected)

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.masked_softmax(x, mask, scale=0.5)

    torch.testing.assert_close(torch.export.export(Module(), (x,)).module()(x), expected)


def test_it_has_a_second_derivative() -> None:
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[0.0, 0.1, -math.inf], [0.2, 0.0, 0.0]], dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: ops.masked_softmax(x, mask, scale=0.7), (x,))


# Kernels of our own, by the registered operator. Those of Triton are interpreted.


def by_kernel(mask: Tensor | None = None, scale: float = 0.5) -> Callable[..., Tensor]:
    def run(x: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = torch.ops.autofuse.masked_softmax(x, mask if bias is None else bias, scale, -1e4, "triton")
        return result

    return run


def by_formula(mask: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda x, bias=None: reference.masked_softmax(x, mask if bias is None else bias, scale=0.5, fill=-1e4)


def test_the_operator_works_with_compilers_checkpoints_export_and_second_derivatives() -> None:
    pytest.importorskip("triton")
    mask, x, bias = boolean_mask(B, 1, T, S), scores().requires_grad_(), torch.randn(1, H, T, S).requires_grad_()
    mask[0, 0, 1] = False
    assert_works_everywhere(by_kernel(mask), by_formula(mask), [x])
    assert_works_everywhere(by_kernel(), by_formula(), [x, bias])
    assert_frozen_parts_get_no_gradient(by_kernel(), by_formula(), [x, bias])


def test_the_operators_pass_torchs_own_checks() -> None:
    pytest.importorskip("triton")
    x = torch.randn(B, T, H, S).transpose(1, 2).requires_grad_()
    y = torch.softmax(x.detach(), -1)
    for mask in (boolean_mask(B, 1, 1, S), torch.randn(T, S).requires_grad_(), None):
        torch.library.opcheck(torch.ops.autofuse.masked_softmax, (x, mask, 0.5, -math.inf, "triton"))
    for mask in (boolean_mask(T, S), None):
        torch.library.opcheck(torch.ops.autofuse.masked_softmax_backward, (x.detach(), y, mask, 0.5, "triton"))


@pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")
def test_large_calls_on_a_cpu_go_to_the_compiled_loop(assert_agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS["masked_softmax"]
    monkeypatch.setattr(operation, "least", 0)
    monkeypatch.setattr(operation, "counts", {})
    mask = boolean_mask(T, S)
    both = (partial(f.masked_softmax, mask=mask, scale=0.3) for f in (ops, reference))
    assert_agree(*both, scores(), terms=S)
    assert operation.counts == {"compiled": 1}


LEFT_TO_TORCH = {
    "no mask and no scale": (scores(), None),
    "a mask that is larger than the scores": (scores()[0], boolean_mask(B, H, T, S)),
    "a mask in double": (scores(), torch.randn(T, S).double()),
    "a mask of other columns": (scores()[..., :1], boolean_mask(T, S)),
}


@pytest.mark.parametrize("given", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH)
def test_torch_computes_calls_that_kernels_do_not_support(
    given: tuple[Tensor, Tensor | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = OPERATIONS["masked_softmax"]
    monkeypatch.setattr(operation, "least", 0)
    expected = reference.masked_softmax(*given)
    torch.testing.assert_close(ops.masked_softmax(*given).to(expected.dtype), expected)
    assert all(operation.provider(name).check(*given) for name in ("compiled", "triton"))


class _Scored(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(S, S)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return by_kernel(mask)(self.inner(x))


def test_a_layer_in_front_of_it_that_fsdp_shards_gets_its_gradient() -> None:
    pytest.importorskip("triton")
    given, whole = (scores(), boolean_mask(T, S)), _Scored()
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


def test_gradients_in_float64_equal_finite_differences() -> None:
    x, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (3, 4)))
    assert torch.autograd.gradcheck(lambda x, bias: ops.masked_softmax(x, bias, scale=0.7), (x, bias))
    assert torch.autograd.gradcheck(lambda x: ops.masked_softmax(x, bias.detach() > 0, fill=-1e4), (x,))
