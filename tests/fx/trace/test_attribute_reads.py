"""How forwards use modules, numbers and decorators. A graph contains such a use if it is sound."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import assert_same, fused_rules


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(()))

    def forward(self, rows: int, columns: int) -> Tensor:
        return self.slope * (torch.arange(columns)[None, :] - torch.arange(rows)[:, None]).abs()


class Rotation(nn.Module):
    """Returns a number and a tensor, like the rotary embedding of x-transformers."""

    scale = 0.5

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return torch.ones_like(x), self.scale


class Attention(nn.Module):
    """Returns its weights, which the caller does not use. The site is fused only if the caller can be traced."""

    def forward(self, x: Tensor, bias: nn.Module, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        scores = x @ x.transpose(-2, -1) * factor
        weights = (scores + bias(x.shape[1], x.shape[1])).softmax(dim=-1)
        return weights @ x, weights


class PassesOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.rotation, self.attention = Bias(), Rotation(), Attention()

    def forward(self, x: Tensor) -> Tensor:
        ones, scale = self.rotation(x)
        out, _ = self.attention(x * ones * scale, self.bias, factor=scale)
        return out


def test_sites_are_fused_although_a_module_and_a_number_are_passed_on() -> None:
    plain, x = PassesOn(), torch.randn(2, 6, 8)
    fused = autofuse.optimize(copy.deepcopy(plain), x)
    assert "AF101" in fused_rules(fused) and not autofuse.report(fused).with_status("declined")
    for training in (False, True):
        assert_same(plain.train(training), fused.train(training), x)
        assert_same(plain, copy.deepcopy(fused), x[:, :5])
    for model in (plain, fused):
        model.rotation.scale = 0.25  # another number in the next call
    assert_same(plain, fused, x)


class Computes(PassesOn):
    def forward(self, x: Tensor) -> Tensor:
        _, scale = self.rotation(x)
        return self.attention(x.softmax(dim=-1) * (scale + 1.0), self.bias)[0]  # type: ignore[no-any-return]


def test_a_forward_that_computes_with_such_a_number_is_refused() -> None:
    fused = autofuse.optimize(Computes(), torch.randn(2, 6, 8))
    sites = [s for s in autofuse.report(fused).sites if "computes with a number" in s.reason]
    assert [s.file for s in sites] == [__file__]


def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return inner


class Decorated(nn.Module):
    @wrapped
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return (x @ x.transpose(-2, -1) * scale).softmax(dim=-1) @ x


@pytest.mark.parametrize("example", [True, False])
def test_a_forward_whose_decorator_takes_any_arguments_is_fused(example: bool) -> None:
    x = torch.randn(2, 6, 8, requires_grad=True)
    fused = autofuse.optimize(Decorated(), (x,) if example else None, tune=False)
    for call in (lambda m: m(x), lambda m: m(x, 0.5), lambda m: m(x=x, scale=2.0)):
        torch.testing.assert_close(call(fused), call(Decorated()))
    assert fused_rules(fused) == {"AF101"}


class Aliased(nn.Module):
    """Reads a child and tensors by second references."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.first, self.weight, self.read = nn.Linear(4, 4), nn.Parameter(torch.rand(4)), read
        self.table = torch.rand(4)
        self.refer(self.first, self.weight, self.table)

    def refer(self, child: nn.Module, weight: nn.Parameter, table: Tensor) -> None:
        self.named, self.listed = nn.ModuleDict({"a": child}), nn.ModuleList([child])
        self.weights, self.items, self.other = nn.ParameterList([weight]), [weight], table

    def forward(self, x: Tensor) -> Tensor:
        found = READS[self.read](self, x) + self.first(x) * self.weight + self.table
        return (found @ x.transpose(-2, -1) * 0.5).softmax(-1) @ x


READS: dict[str, Callable[[Aliased, Tensor], Tensor]] = {
    "a dict of modules": lambda m, x: m.named["a"](x),
    "a list of modules": lambda m, x: m.listed[0](x),
    "a loop over a list of modules": lambda m, x: sum(f(x) for f in m.listed),  # type: ignore[misc]
    "a list of parameters": lambda m, x: x * m.weights[0],
    "a list": lambda m, x: x * m.items[0],
    "a second attribute": lambda m, x: x * m.other,
}


@pytest.mark.parametrize("read", READS)
def test_a_second_reference_may_later_refer_to_something_else(read: str) -> None:
    torch.manual_seed(0)
    model, x = Aliased(read), torch.randn(2, 3, 4)
    plain = copy.deepcopy(model)
    autofuse.optimize(model, (x,), tune=False)
    assert fused_rules(model) == {"AF101"}
    torch.testing.assert_close(model(x), plain(x))
    for each in (model, plain):
        each.named["a"] = each.listed[0] = nn.Sigmoid()
        each.weights[0] = each.items[0] = nn.Parameter(torch.full((4,), 3.0))
        each.other = torch.full((4,), 5.0)
    torch.testing.assert_close(model(x), plain(x))
