"""Divergences, entropy and log-sum-exp of a linear layer's output, in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference
from autofuse.torch_private import functional

ROWS, DIM, CLASSES = (3, 40), 6, 1200  # more logits than are formed at once
ARITHMETIC = [{}, {"scale": 0.5}, {"soft_cap": 2.0}, {"scale": 0.5, "soft_cap": 2.0}]
KINDS = ["kl", "reverse_kl", "cross_entropy"]
REDUCTIONS = ["rows", "sum", "mean", "batchmean"]
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def operands(rows: tuple[int, ...] = ROWS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    shapes = ((*rows, DIM), (CLASSES, DIM), (CLASSES,))
    x, weight, bias = (torch.randn(s, generator=drawn, dtype=torch.float64) for s in shapes)
    return tuple(t.to(dtype).requires_grad_() for t in (x, weight, bias))  # type: ignore[return-value]


def other(log_target: bool, rows: tuple[int, ...] = ROWS, dtype: torch.dtype = torch.float64) -> Tensor:
    """Another distribution over the classes."""
    logits = torch.randn(*rows, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (logits.log_softmax(-1) if log_target else logits.softmax(-1)).to(dtype)


def with_gradients(loss: Loss, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    made = loss(x, weight, bias)
    weights = torch.linspace(0.5, 1, made.numel(), dtype=made.dtype).view_as(made)
    inputs = [t for t in (x, weight, bias) if t is not None]
    return [made, *torch.autograd.grad((made * weights).sum(), inputs)]


def assert_equal(fused: Loss, plain: Loss, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Outputs and gradients in float64: a sum of n terms has an error of n units."""
    expected, actual = (with_gradients(f, x, weight, bias) for f in (plain, fused))
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        unit = torch.finfo(a.dtype).eps * math.prod(ROWS) * 4
        assert float((a - b).abs().max()) <= unit * max(float(b.abs().max()), 1.0)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("log_target", [True, False])
def test_divergences_agree_with_the_formula(kind: str, reduction: str, log_target: bool) -> None:
    target = other(log_target)
    options: dict[str, Any] = {"kind": kind, "reduction": reduction, "log_target": log_target}
    run = lambda f: lambda x, w, b: f(x, w, target, bias=b, **options)
    assert_equal(run(ops.linear_divergence), run(reference.linear_divergence), *operands())


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)
def test_logits_are_capped_and_scaled(arithmetic: dict[str, float]) -> None:
    target, (x, weight, _) = other(False), operands()
    for name, given in (("linear_divergence", (target,)), ("linear_entropy", ()), ("linear_logsumexp", ())):
        run = lambda home, name=name, given=given: lambda x, w, b: getattr(home, name)(x, w, *given, **arithmetic)
        assert_equal(run(ops), run(reference), x, weight, None)


@pytest.mark.parametrize("options", [{}, {"flat": True}], ids=str)
def test_entropy_agrees_with_the_formula(options: dict[str, bool]) -> None:
    run = lambda f: lambda x, w, b: f(x, w, bias=b, **options)
    assert_equal(run(ops.linear_entropy), run(reference.linear_entropy), *operands())


@pytest.mark.parametrize("options", [{}, {"flat": True}, {"keepdim": True}, {"flat": True, "keepdim": True}], ids=str)
def test_log_sum_exp_agrees_with_the_formula(options: dict[str, bool]) -> None:
    run = lambda f: lambda x, w, b: f(x, w, bias=b, **options)
    assert_equal(run(ops.linear_logsumexp), run(reference.linear_logsumexp), *operands())


def test_a_target_may_have_its_rows_in_another_shape() -> None:
    target = other(False).reshape(-1, CLASSES)
    run = lambda f: lambda x, w, b: f(x, w, target, bias=b)
    made = ops.linear_divergence(*operands()[:2], target)
    assert made.shape == (math.prod(ROWS),)
    assert_equal(run(ops.linear_divergence), run(reference.linear_divergence), *operands())


def test_a_target_that_requires_a_gradient_gets_it() -> None:
    x, weight, _ = operands()
    target = other(True).requires_grad_()
    expected = F.kl_div(F.log_softmax(x @ weight.mT, -1), target, log_target=True, reduction="sum")
    made = ops.linear_divergence(x, weight, target, log_target=True, reduction="sum")
    for a, b in zip(torch.autograd.grad(made, [x, target]), torch.autograd.grad(expected, [x, target]), strict=True):
        torch.testing.assert_close(a, b)


def test_one_distribution_for_all_rows_is_broadcast() -> None:
    x, weight, _ = operands()
    prior = other(False)[0, 0]
    expected = -(prior * F.log_softmax(x @ weight.mT, -1)).sum(-1)
    torch.testing.assert_close(ops.linear_divergence(x, weight, prior, kind="cross_entropy"), expected)


def test_a_block_of_the_logits_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = operands((8192,), torch.float32)
    seen: list[int] = []

    def linear(rows: Tensor, *others: Any) -> Tensor:
        seen.append(rows.shape[0])
        return plain(rows, *others)

    plain = F.linear
    monkeypatch.setattr(functional, "linear", linear)
    ops.linear_logsumexp(x, weight).sum().backward()
    assert sum(seen) == 2 * 8192  # once more in the backward pass
    assert max(seen) < 8192


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_are_those_of_torch(dtype: torch.dtype) -> None:
    x, weight, _ = operands(dtype=dtype)
    target = other(False, dtype=dtype)
    logits = x @ weight.mT
    assert ops.linear_logsumexp(x, weight).dtype is torch.logsumexp(logits, -1).dtype
    assert ops.linear_entropy(x, weight).dtype is logits.log_softmax(-1).dtype
    assert ops.linear_divergence(x, weight, target).dtype is dtype
    assert ops.linear_divergence(x, weight, target.float()).dtype is torch.float32
    assert ops.linear_logsumexp(x, weight, in_float32=True).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.linear_entropy(x, weight).dtype is torch.float32


def test_an_unknown_kind_or_reduction_is_refused() -> None:
    x, weight, _ = operands()
    with pytest.raises(ValueError, match="takes the kinds"):
        ops.linear_divergence(x, weight, other(False), kind="js")
    with pytest.raises(ValueError, match="takes the reductions"):
        ops.linear_divergence(x, weight, other(False), reduction="none")
