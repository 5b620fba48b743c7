"""Attention has every derivative that hand-written attention has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jvp
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from autofuse import ops

KERNEL = "aten::_scaled_dot_product_flash_attention_for_cpu"


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(
        (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf), -1
    )
    return weights @ v


def fused_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ops.attention(q, k, v, scale=1 / math.sqrt(q.shape[-1]), is_causal=True)


@pytest.fixture
def operands() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))


def kernels_run(work: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return sum(e.name == KERNEL for e in seen.events())


def penalty_gradients(attend: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of a gradient penalty."""
    first = torch.autograd.grad(attend(*operands).square().sum(), operands, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), operands)


def test_the_gradient_of_a_gradient_penalty_is_that_of_code_by_hand(operands: tuple[Tensor, ...]) -> None:
    for found, expected in zip(
        penalty_gradients(fused_function, operands), penalty_gradients(by_hand, operands), strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert kernels_run(lambda: penalty_gradients(fused_function, operands)) == 1


def test_its_derivatives_agree_with_finite_differences(operands: tuple[Tensor, ...]) -> None:
    small = tuple(x[:1, :1, :, :2].detach().requires_grad_() for x in operands)
    assert gradcheck(fused_function, small, check_forward_ad=True)
    assert gradgradcheck(fused_function, small)


def test_a_mask_counts_in_second_derivatives(operands: tuple[Tensor, ...]) -> None:
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[..., 0] = True

    def masked_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.attention(q, k, v, mask=mask)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(~mask, -math.inf), -1) @ v

    for found, expected in zip(
        penalty_gradients(masked_softmax, operands), penalty_gradients(plain, operands), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_one_tensor_may_be_query_key_and_value(operands: tuple[Tensor, ...]) -> None:
    x = operands[:1]
    (found,) = penalty_gradients(lambda t: fused_function(t, t, t), x)
    (expected,) = penalty_gradients(lambda t: by_hand(t, t, t), x)
    torch.testing.assert_close(found, expected)


def test_transforms_of_torch_func_nest(operands: tuple[Tensor, ...]) -> None:
    q, k, v = (x.detach() for x in operands)
    small = q[:1, :1]
    for transform in (lambda f: hessian(f)(small), lambda f: grad(lambda y: grad(f)(y).square().sum())(small)):
        found, expected = (transform(lambda t, a=a: a(t, k, v).square().sum()) for a in (fused_function, by_hand))
        torch.testing.assert_close(found, expected)
    tangents = (torch.ones_like(q),)
    for found, expected in zip(
        *(jvp(lambda t, a=a: a(t, k, v), (q,), tangents) for a in (fused_function, by_hand)), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_a_graph_around_torch_func_goes_through_its_gradient(operands: tuple[Tensor, ...]) -> None:
    """An inner step with torch.func.grad, an outer step with backward: MAML."""
    q, k, v = operands
    results = []
    for attend in (fused_function, by_hand):
        inner = grad(lambda t, a=attend: a(t, k, v).square().sum())(q)
        results.append(torch.autograd.grad((q - 0.1 * inner).square().sum(), operands, allow_unused=True))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_an_ordinary_backward_pass_runs_only_the_kernels(operands: tuple[Tensor, ...]) -> None:
    def work() -> None:
        fused_function(*operands).sum().backward()

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    names = {e.name for e in seen.events()}
    assert KERNEL in names and KERNEL + "_backward" in names
    assert "aten::_scaled_dot_product_attention_math" not in names


def test_a_checkpoint_with_create_graph_works(operands: tuple[Tensor, ...]) -> None:
    """A checkpoint unpacks saved tensors only once, so the gradient is the kernel's."""
    result = checkpoint(fused_function, *operands, use_reentrant=False)
    found = torch.autograd.grad(result.square().sum(), operands, create_graph=True)
    for gradient, expected in zip(found, torch.autograd.grad(by_hand(*operands).square().sum(), operands), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_dropped_weights_are_differentiated_by_torch_itself(operands: tuple[Tensor, ...]) -> None:
    def attend_with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return ops.attention(q, k, v, dropout_p=0.5, training=True)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v

    for found, expected in zip(
        penalty_gradients(attend_with_dropout, operands), penalty_gradients(reference, operands), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("batched", [(0, 0, 0), (None, 0, 0), (0, None, None)])
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_on_a_cpu_computes_all_entries_at_once(
    operands: tuple[Tensor, ...], batched: tuple[int | None, ...]
) -> None:
    stacked = tuple(x if at is None else torch.stack([x, x * 2]) for x, at in zip(operands, batched, strict=True))
    found = torch.vmap(fused_function, batched)(*stacked)
    torch.testing.assert_close(found, torch.vmap(by_hand, batched)(*stacked))
    assert kernels_run(lambda: torch.vmap(fused_function, batched)(*stacked)) == 0
