"""Norms of rows for the tests of kernels: random operands, and forward and backward against autograd in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.dropout_bits import keep_mask

EPS = 1e-5
SEED = 1234567890123456789


@dataclass(frozen=True)
class Case:
    """Which operands there are; x and residual are (rows, width)."""

    rows: int
    width: int
    dtype: torch.dtype = torch.float32
    centred: bool = True
    residual: bool = False
    weight: bool = True
    bias: bool = True
    p: float = 0.0
    residual_dtype: torch.dtype | None = None
    weight_dtype: torch.dtype | None = None
    gap: int = 0  # columns between one row's end and the next one's start

    def operands(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        generator = torch.Generator().manual_seed(self.rows * self.width)

        def random_tensor(*shape: int, dtype: torch.dtype | None) -> Tensor:
            numbers = torch.randn(*shape[:-1], shape[-1] + self.gap * (len(shape) > 1), generator=generator)
            return (numbers[..., : shape[-1]] + 0.5).to(dtype or self.dtype)

        return (
            random_tensor(self.rows, self.width, dtype=None),
            random_tensor(self.rows, self.width, dtype=self.residual_dtype) if self.residual else None,
            random_tensor(self.width, dtype=self.weight_dtype) if self.weight else None,
            random_tensor(self.width, dtype=self.weight_dtype) if self.bias else None,
        )


def check(kernel: Any, case: Case) -> None:
    """The sum, the norm and all gradients are those of the formula in double, apart from rounding.

    The bound is 4 units in the last place of the largest entry for a result that is rounded once or twice, and as many
    of fp32 times the root of the number of terms for what is summed: independent roundings add up like that. Means and
    deviations may be those of the sum before it was rounded (a compiler leaves out a rounding that is undone at once):
    what the formula takes from the rounded sum may then be off by one of its roundings.
    """
    operands = x, residual, weight, bias = case.operands()
    seed = torch.tensor([SEED]) if case.p else None
    summed = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    out, total, mean, rstd = kernel.forward(
        x, residual, weight, bias, seed, case.p, EPS, case.centred, case.dtype, summed
    )
    doubles = [None if t is None else t.double().requires_grad_() for t in operands]
    expected_total = _sum(doubles[0], doubles[1], seed, case.p)
    own = residual is not None or seed is not None
    if own:
        _close(total, expected_total, 1)
        # Gradients are taken where the kernel takes them: at the sum as it was rounded.
        expected_total = expected_total + (total.double() - expected_total).detach()
    else:
        assert total is None
    expected = _norm(expected_total, doubles[2], doubles[3], case.centred)
    _close(out, expected, case.width)
    given, carried = torch.randn_like(expected).to(out.dtype), torch.randn_like(expected).to(summed) if own else None
    wanted = residual.dtype if residual is not None and (seed is not None or residual.dtype != x.dtype) else None
    found = kernel.backward(
        given, carried, total if own else x, weight, mean, rstd, seed, case.p, x.dtype, wanted, case.weight, case.bias
    )
    results = [expected] if carried is None else [expected, expected_total]
    cotangents = [given.double()] if carried is None else [given.double(), carried.double()]
    truth = iter(torch.autograd.grad(results, [t for t in doubles if t is not None], cotangents))
    _close(found[0], next(truth), case.width)
    if residual is not None:
        _close(found[0] if wanted is None else found[1], next(truth), case.width)
    for gradient, there in zip(found[2:], (case.weight, case.bias), strict=True):
        if there:
            assert gradient.dtype is torch.float32
            _close(gradient, next(truth), case.rows * case.width, coarse=torch.finfo(total.dtype).eps if own else 0.0)
        else:
            assert gradient is None


def _sum(x: Tensor, residual: Tensor | None, seed: Tensor | None, p: float) -> Tensor:
    if seed is not None:
        x = torch.where(keep_mask(seed, torch.arange(len(x)), x.shape[1], p), x / (1 - p), 0.0)
    return x if residual is None else x + residual


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, centred: bool) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if centred else x
    x = x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _close(found: Tensor, truth: Tensor, terms: int, coarse: float = 0.0) -> None:
    assert found.shape == truth.shape
    size = truth.detach().abs().max().clamp(min=1.0)
    bound = (4 * torch.finfo(found.dtype).eps + 4 * torch.finfo(torch.float32).eps * terms**0.5 + coarse) * size
    assert (found.double() - truth).abs().max() <= bound
