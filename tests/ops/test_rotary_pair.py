"""ops.rotary_pair equals two calls of ops.rotary, and runs our kernel where both of these would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import using
from autofuse.ops import reference
from tests.ops.operators import assert_frozen_parts_get_no_gradient, assert_works_everywhere

B, T, D = 2, 5, 8
PAIR, ROTARY = OPERATIONS["rotary_pair"], OPERATIONS["rotary"]


@pytest.fixture
def on_this_device() -> Iterator[None]:
    """Our Triton kernels are defaults on CPUs too, interpreted, for tensors of any size."""
    pytest.importorskip("triton")
    before = {o: (o.providers, o.least) for o in (ROTARY, PAIR)}
    for operation in before:
        ours = replace(operation.provider("triton"), devices=("cpu",))
        operation.providers, operation.least = (ours, operation.torch), 0
        operation.forget()
    yield
    for operation, (providers, least) in before.items():
        operation.providers, operation.least = providers, least
        operation.forget()


def operands(dtype: torch.dtype = torch.float32, angles: int = D) -> list[Tensor]:
    shapes = ((B, 3, T, D), (B, 1, T, D), (T, angles), (T, angles))
    return [torch.randn(shape).to(dtype).requires_grad_(i < 2) for i, shape in enumerate(shapes)]


def in_one_result(run: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """One result, for checks of functions with one result."""
    return lambda *given: torch.cat([t.flatten() for t in run(*given)])


def by_triton(*given: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = torch.ops.autofuse.rotations(*given, False, False, "triton")
    return result


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("angles", [D, D // 2, 1])
def test_a_pair_agrees(assert_agree: Callable[..., None], angles: int, dtype: torch.dtype, interleaved: bool) -> None:
    assert_agree(ops.rotary_pair, reference.rotary_pair, *operands(dtype, angles), interleaved=interleaved, terms=4)


@pytest.mark.usefixtures("on_this_device")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("unread", [0, 1, None])
def test_gradients_reach_those_that_are_read(interleaved: bool, unread: int | None) -> None:
    given = operands()
    weights = [torch.randn(t.shape) for t in given[:2]]
    grads = []
    for run in (ops.rotary_pair, reference.rotary_pair):
        results = run(*given, interleaved=interleaved)
        loss = sum((r * w).sum() for i, (r, w) in enumerate(zip(results, weights, strict=True)) if i != unread)
        grads.append(torch.autograd.grad(loss, given[:2], allow_unused=True))
    for found, expected in zip(*grads, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected)
    assert PAIR.counts["triton"]


@pytest.mark.usefixtures("on_this_device")
def test_results_may_be_written_in_place() -> None:
    given = operands()
    query, key = ops.rotary_pair(*given)
    query *= 2.0
    key[:, :, 0] = 0.0
    expected = [2.0 * reference.rotary(given[0], *given[2:]), reference.rotary(given[1], *given[2:])]
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(key[:, :, 1:], expected[1][:, :, 1:])
    of_query, of_key = torch.autograd.grad(query.sum() + key.sum(), given[:2])
    assert of_query.any() and not of_key[:, :, 0].any() and of_key[:, :, 1:].any()


@pytest.mark.usefixtures("on_this_device")
def test_the_result_has_the_dtype_of_the_widest_operand() -> None:
    query, key, cos, sin = operands()
    low = [t.detach().bfloat16().requires_grad_() for t in (query, key)]
    results = ops.rotary_pair(*low, cos, sin)
    assert {r.dtype for r in results} == {torch.float32}
    for found, x in zip(torch.autograd.grad([r.sum() for r in results], low), low, strict=True):
        assert found.dtype is torch.bfloat16
        (expected,) = torch.autograd.grad(reference.rotary(x.float(), cos, sin).sum(), x)
        torch.testing.assert_close(found, expected, atol=0, rtol=2**-7)


def test_the_operator_works_under_torchs_wrappers() -> None:
    pytest.importorskip("triton")
    plain = in_one_result(reference.rotary_pair)
    assert_works_everywhere(
        in_one_result(by_triton), plain, operands()[:2] + [t.requires_grad_() for t in operands()[2:]]
    )
    given = [t.detach().requires_grad_() for t in operands()]
    assert_frozen_parts_get_no_gradient(in_one_result(by_triton), plain, given)
    torch.library.opcheck(torch.ops.autofuse.rotations, (*operands(), False, False, "triton"))


@pytest.mark.usefixtures("on_this_device")
def test_other_kernels_rotate_each_alone() -> None:
    given = operands()
    assert PAIR.taker(*given).name == "triton"
    angles = [*given[:2], *(t.detach().requires_grad_() for t in given[2:])]
    assert "ops.rotary rotates the query with torch" in PAIR.provider("triton").check(*angles)
    assert "of one width and dtype" in PAIR.provider("triton").check(given[0], given[1].bfloat16(), *given[2:])
    with using(providers=("torch",)):
        assert PAIR.taker(*given).name == "torch"
    ROTARY.providers = (ROTARY.torch,)
    ROTARY.forget()  # a measurement does the same
    assert PAIR.taker(*given).name == "torch"
    with pytest.raises(ValueError, match="does not divide into pairs"):
        ops.rotary_pair(given[0][..., :7], given[1][..., :7], *given[2:])
