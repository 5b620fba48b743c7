"""Changes after optimize in a module, its class, its arguments or torch are noticed at the next call."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules


class Attend(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v


class Scaled(nn.Module):
    SCALE = 0.3

    def scale(self) -> float:
        return type(self).SCALE

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * self.scale(), -1) @ x


class Sharper(Scaled):
    SCALE = 1.0


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.same = self.up

    def forward(self, x: Tensor) -> Tensor:
        h = self.same(x)
        h = h * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        return self.down(h)  # type: ignore[no-any-return]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.gain = self.weight

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


class Picked(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return -torch.log_softmax(logits, -1)[torch.arange(len(target)), target].mean()


class Loud(Tensor):
    """A tensor whose class computes softmax in another way."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.softmax else result


def of(*sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*s, dtype=torch.float64, generator=generator) for s in sizes)


def nothing(_: nn.Module) -> None:
    pass


def sharper(module: nn.Module) -> None:
    module.__class__ = Sharper


def another_layer(module: Any) -> None:
    torch.manual_seed(3)
    module.same = nn.Linear(8, 16).double()


def another_gain(module: Any) -> None:
    module.gain = nn.Parameter(torch.full((8,), 3.0, dtype=torch.float64))


def no_gain(module: Any) -> None:
    module.gain = None


HEADS, LONG, ROWS = (2, 2, 6, 8), (2, 2, 7, 8), (2, 5, 8)
TARGETS = torch.tensor([1, 0, 3, 2])
CHANGES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], Callable[[nn.Module], None], tuple[Any, ...]]] = {
    "more values than keys": (Attend, of(HEADS, HEADS, HEADS), nothing, of(HEADS, HEADS, LONG)),
    "fewer values than keys": (Attend, of(HEADS, HEADS, HEADS), nothing, of(HEADS, LONG, HEADS)),
    "another number of both": (Attend, of(HEADS, HEADS, HEADS), nothing, of(HEADS, LONG, LONG)),
    "a class that overrides softmax": (
        Attend, of(HEADS, HEADS, HEADS), nothing, tuple(t.as_subclass(Loud) for t in of(HEADS, HEADS, HEADS)),
    ),
    "parameters as arguments": (
        Attend, of(HEADS, HEADS, HEADS), nothing, tuple(map(nn.Parameter, of(HEADS, HEADS, HEADS))),
    ),
    "another class": (Scaled, of(ROWS), sharper, of(ROWS)),
    "a layer's other name": (Mlp, of(ROWS), another_layer, of(ROWS)),
    "a parameter's other name": (Norm, of(ROWS), another_gain, of(ROWS)),
    "no parameter": (Norm, of(ROWS), no_gain, of(ROWS)),
    "a column of targets": (Picked, (*of((4, 9)), TARGETS), nothing, (*of((4, 9)), TARGETS[:, None])),
}  # fmt: skip


def outcome(module: nn.Module, given: tuple[Any, ...]) -> Any:
    try:
        return module(*given).as_subclass(Tensor)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str, lazily: bool) -> None:
    make, first, change, later = CHANGES[name]
    torch.manual_seed(0)
    plain = make().double()
    fused = autofuse.optimize(copy.deepcopy(plain), None if lazily else first, tune=False)
    torch.testing.assert_close(fused(*first), plain(*first))
    assert fused_rules(fused)
    change(plain)
    change(fused)
    for _ in range(2):
        expected, found = outcome(plain, later), outcome(fused, later)
        if isinstance(expected, Tensor):
            torch.testing.assert_close(found, expected)
        else:
            assert found is expected


@pytest.mark.parametrize("cls", [nn.Linear, nn.Module])
def test_a_call_that_is_replaced_for_a_class_is_made(cls: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, (x,) = Mlp().double(), of(ROWS)
    fused = autofuse.optimize(copy.deepcopy(plain), x, tune=False)
    fused(x)
    called: list[str] = []
    before = cls.__call__

    def spy(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        called.append(type(self).__name__)
        return before(self, *args, **kwargs)

    monkeypatch.setattr(cls, "__call__", spy)
    plain(x)
    expected = list(called)
    called.clear()
    fused(x)
    assert called == expected and "Linear" in expected
