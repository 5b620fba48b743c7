"""A dropout at the end of a child is fused with the add and the norm in its parent."""

from __future__ import annotations

import copy
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from tests.fx.conftest import assert_same


class Sublayer(nn.Module):
    """Ends in its dropout."""

    def __init__(self, p: float = 0.5, pair: bool = False) -> None:
        super().__init__()
        self.inner, self.proj, self.drop, self.pair = nn.Linear(16, 16), nn.Linear(16, 16), nn.Dropout(p), pair

    def forward(self, x: Tensor) -> Any:
        y = torch.tanh(self.inner(x))
        result = self.drop(self.proj(y))
        return (result, y) if self.pair else result


class Block(nn.Module):
    """Adds the result of the child and normalizes."""

    def __init__(self, sublayer: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.head = sublayer, nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.sublayer(x)
        x = x + (y[0] if isinstance(y, tuple) else y)
        return x + self.head(self.norm(x))


def _rates(model: nn.Module, x: Tensor) -> list[float]:
    """The dropout probability of each call of the fused operation, 0 if inactive."""
    rates = list[float]()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is ops.dropout_add_norm.__code__:
            rates.append(frame.f_locals["dropout_p"] if frame.f_locals["training"] else 0.0)

    sys.setprofile(watch)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    return rates


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_the_fused_operation_drops(pair: bool, late: bool) -> None:
    x = torch.randn(4, 16)
    model = autofuse.optimize(Block(Sublayer(pair=pair)).train(), None if late else x)
    model(x)
    assert _rates(model, x) == [0.5]
    assert all(s.status == "fused" for s in autofuse.report(model).sites)


def test_it_drops_the_same_entries_as_the_original() -> None:
    x = torch.randn(4, 16)
    plain = Block(Sublayer())
    model = autofuse.optimize(copy.deepcopy(plain), x)
    torch.manual_seed(0)
    expected = plain(x)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)  # one draw of the same shape, at the same place
    assert_same(plain.eval(), model.eval(), x)
    for m in (plain, model):
        m.train().sublayer.drop.p = 0.0
    assert_same(plain, model, x)


def test_a_hook_on_the_child_sees_the_result_with_dropout() -> None:
    x, seen = torch.ones(4, 16), []
    model = autofuse.optimize(Block(Sublayer(p=0.9)), x)
    handle = model.sublayer.register_forward_hook(lambda module, args, result: seen.append(result))
    model(x)
    assert (seen[0] == 0).float().mean() > 0.5
    handle.remove()
    assert _rates(model, x) == [0.9]


def test_without_its_narrow_forward_the_child_still_does_not_drop_twice() -> None:
    x = torch.randn(4, 16)
    plain = Block(Sublayer())
    model = autofuse.optimize(copy.deepcopy(plain), x)
    autofuse.restore(model.sublayer)
    torch.manual_seed(0)
    expected = plain(x)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)
    assert model.sublayer.drop.training


class _Twice(Sublayer):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.drop(self.proj(self.drop(x)))
        return result


class _Sum(Sublayer):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.drop(self.proj(x))
        return result + x


@pytest.mark.parametrize("sublayer", [_Twice(), _Sum(), Sublayer(p=0.0)])
def test_a_dropout_that_is_not_only_the_end_is_not_moved(sublayer: nn.Module) -> None:
    x = torch.randn(4, 16)
    plain = Block(sublayer)
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert _rates(model, x) == [0.0]
    torch.manual_seed(0)
    expected = plain(x)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)


def test_without_a_norm_the_call_is_not_split() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sublayer = Sublayer(pair=True)

        def forward(self, x: Tensor) -> Tensor:
            y, h = self.sublayer(x)
            return 0.5 * (x + y) * (1.0 + torch.erf((x + y) * 0.7071067811865475)) + h

    x = torch.randn(4, 16)
    plain = Added()
    model = autofuse.optimize(copy.deepcopy(plain), x)
    assert [s.rule for s in autofuse.report(model).with_status("fused")] == ["AF301"]
    torch.manual_seed(0)
    expected = plain(x)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)
