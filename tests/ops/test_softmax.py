"""autofuse.ops.masked_softmax against its reference: masks of both kinds, scales, and what surrounds autograd."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference

B, H, T, S = 2, 3, 4, 5
Agree = Callable[..., None]


@pytest.fixture(autouse=True, params=[0, 2**17], ids=["in few passes", "small"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors take the formula; with a threshold of 0 they stand for large ones."""
    monkeypatch.setattr(sys.modules["autofuse.ops.softmax"], "_SMALL", request.param)


def scores(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, H, T, S).to(dtype)


def kept(*shape: int) -> Tensor:
    found = torch.rand(shape) > 0.4
    found[..., 0] = True
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(T, S), (B, 1, T, S), (B, 1, 1, S), (B, H, T, S), (1, H, 1, S)])
@pytest.mark.parametrize("fill", [None, -1e4])
def test_agrees_for_boolean_masks(
    assert_agree: Agree, dtype: torch.dtype, shape: tuple[int, ...], fill: float | None
) -> None:
    given = {"mask": kept(*shape), "scale": 0.3, "fill": fill}
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


def test_rows_that_keep_nothing_are_what_torch_makes_of_them() -> None:
    mask = torch.zeros(T, S, dtype=torch.bool)
    assert ops.masked_softmax(scores(), mask).isnan().all()
    even, x = torch.full((), 1 / S), scores().requires_grad_()
    filled = ops.masked_softmax(x, mask, fill=-1e9)
    torch.testing.assert_close(filled, even.expand_as(filled))
    filled.square().sum().backward()
    assert x.grad is not None and not x.grad.any()  # the fill hides the scores


def test_a_row_that_keeps_nothing_passes_no_nan_on_to_the_scores() -> None:
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[0] = False
    x = scores().requires_grad_()
    ops.masked_softmax(x, mask).nan_to_num(0.0).square().sum().backward()
    exact = x.detach().clone().requires_grad_()
    torch.softmax(exact.masked_fill(~mask, float("-inf")), -1).nan_to_num(0.0).square().sum().backward()
    torch.testing.assert_close(x.grad, exact.grad)


def test_a_mask_that_is_larger_than_the_scores_broadcasts_them(assert_agree: Agree) -> None:
    mask = kept(B, 1, T, S)
    both = (partial(f.masked_softmax, mask=mask, scale=2.0) for f in (ops, reference))
    assert_agree(*both, torch.randn(H, T, S), terms=B * S)


def test_it_compiles_whole_exports_and_is_mapped() -> None:
    x, mask = scores(), kept(T, S)
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
