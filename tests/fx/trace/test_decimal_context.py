"""Arithmetic of decimal is guarded by its context, and optimize raises none of its signals."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import autofuse

ONE, SIX = decimal.Decimal(1), decimal.Decimal(6)


class Attention(nn.Module):
    """Attention whose scale is computed with Decimals."""

    def __init__(self, scale: Callable[[], float]) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * self.scale(), -1) @ x


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with decimal.localcontext() as context:
        context.clear_flags()
        yield


def _optimized(scale: Callable[[], float], x: Tensor) -> Attention:
    model = Attention(scale)
    autofuse.optimize(model, x, tune=False)
    assert [s.rule for s in autofuse.report(model).with_status("fused")] == ["AF101"]
    return model


def _expected(x: Tensor, scale: float) -> Tensor:
    return torch.softmax(x @ x.transpose(-2, -1) * scale, -1) @ x


SCALES: dict[str, Callable[[], float]] = {
    "of globals": lambda: float(ONE / SIX),
    "of new Decimals": lambda: float(decimal.Decimal(1) / decimal.Decimal("6")),
}


@pytest.mark.parametrize("scale", SCALES)
def test_another_precision_is_noticed(scale: str) -> None:
    x = torch.randn(2, 5, 8)
    model = _optimized(SCALES[scale], x)
    torch.testing.assert_close(model(x), _expected(x, 1 / 6))
    decimal.getcontext().prec = 1
    torch.testing.assert_close(model(x), _expected(x, 0.2))


def test_the_context_of_a_block_is_noticed() -> None:
    x = torch.randn(2, 5, 8)
    model = _optimized(SCALES["of globals"], x)
    with decimal.localcontext() as context:
        context.prec = 2
        torch.testing.assert_close(model(x), _expected(x, 0.17))
    torch.testing.assert_close(model(x), _expected(x, 1 / 6))


def test_a_call_raises_the_signals_of_the_original() -> None:
    x = torch.randn(2, 5, 8)
    model = _optimized(SCALES["of globals"], x)
    assert not decimal.getcontext().flags[decimal.Inexact]  # optimize raised none
    model(x)
    assert decimal.getcontext().flags[decimal.Inexact]


def test_a_forward_without_decimals_has_no_such_guard() -> None:
    x = torch.randn(2, 5, 8)
    model = _optimized(lambda: 0.25, x)
    decimal.getcontext().prec = 2
    model(x)
    assert not autofuse.report(model).fallbacks
