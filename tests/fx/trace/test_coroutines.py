"""A run of autofuse's own leaves no coroutine that nothing awaits, and a forward that runs later stays as it is."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.coroutines import close_coroutines

X = torch.randn(2, 3, 4)


class Attention(nn.Module):
    def attend(self, x: Tensor) -> Tensor:
        return (x @ x.mT * 0.5).softmax(-1) @ x


class Awaited(Attention):
    async def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


class Yielded(Attention):
    def forward(self, x: Tensor) -> Iterator[Tensor]:
        yield self.attend(x)


class Holder(nn.Module):
    """Returns what its child returns, next to a result of its own."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Any:
        return {"later": self.child(x), "now": x * torch.sigmoid(x)}


def results(found: Any) -> list[Tensor]:
    if isinstance(found, dict):
        return [*results(found["later"]), found["now"]]
    return [asyncio.run(found)] if inspect.iscoroutine(found) else list(found)


@pytest.mark.parametrize("of", [Awaited, Yielded])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("examples", [None, (X,)])
def test_a_forward_that_runs_later_is_unchanged(of: type[Attention], held: bool, examples: Any) -> None:
    model: nn.Module = Holder(of()) if held else of()
    expected = results(model(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autofuse.optimize(model, examples, tune=False)
        found = results(model(X))
        gc.collect()
    torch.testing.assert_close(found, expected)
    own = model.child if held else model
    assert asyncio.iscoroutinefunction(own.forward) == (of is Awaited)
    assert inspect.isgeneratorfunction(own.forward) == (of is Yielded)


def test_coroutines_in_containers_are_closed() -> None:
    made = [Awaited()(X), {"a": (Awaited()(X), X)}]
    close_coroutines(made)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED  # type: ignore[arg-type]
    assert inspect.getcoroutinestate(made[1]["a"][0]) == inspect.CORO_CLOSED  # type: ignore[index,call-overload]
