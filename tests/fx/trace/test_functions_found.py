"""The functions that ran are found under the names that decorators gave them, and guarded under these names."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules


def scaled(by: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * by

        return inner

    return decorate


@scaled(0.5)
def products(x: Tensor) -> Tensor:
    return x @ x.transpose(-2, -1)


class Attention(nn.Module):
    @scaled(2.0)
    def scores(self, x: Tensor) -> Tensor:
        return products(x)  # type: ignore[no-any-return]

    @scaled(1.0)
    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax(dim=-1) @ x  # type: ignore[no-any-return]


def _set_in_cell(function: Any, by: float) -> None:
    cells: dict[str, types.CellType] = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    cells["by"].cell_contents = by


@pytest.mark.parametrize("function", [lambda: products, lambda: vars(Attention)["scores"]], ids=["helper", "method"])
def test_decorated_functions_are_found_without_the_collector_and_guarded(function: Callable[[], Any]) -> None:
    gc.collect()
    gc.freeze()  # as servers do before they fork: gc.get_referrers then finds none of these functions
    x = torch.randn(2, 6, 8)
    fused = autofuse.optimize(Attention(), (x,), tune=False)
    torch.testing.assert_close(fused(x), Attention()(x))
    assert fused_rules(fused) == {"AF101"}
    cells = dict(zip(function().__code__.co_freevars, function().__closure__, strict=True))
    before = cells["by"].cell_contents
    try:
        _set_in_cell(function(), 7.0)
        torch.testing.assert_close(fused(x), Attention()(x))
    finally:
        _set_in_cell(function(), before)


def test_a_replaced_decorated_helper_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 6, 8)
    fused = autofuse.optimize(Attention(), (x,), tune=False)
    torch.testing.assert_close(fused(x), Attention()(x))
    monkeypatch.setitem(globals(), "products", scaled(3.0)(lambda x: x @ x.transpose(-2, -1)))
    torch.testing.assert_close(fused(x), Attention()(x))
    monkeypatch.setattr(Attention, "scores", lambda self, x: products(x) * 0.1)
    torch.testing.assert_close(fused(x), Attention()(x))
