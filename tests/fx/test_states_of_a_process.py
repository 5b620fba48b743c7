"""State of the process: locks, tensors without strides, operators, attributes of functions."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock: Any = threading.Lock()
        self.norm = Normed()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return torch.softmax(self.norm(x) @ x.mT * 0.3, -1) @ x


class Normed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


class Attend(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * 0.3, -1) @ x


WAYS = pytest.mark.parametrize("way", ["with examples", "lazily"])
X = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def optimized(model: nn.Module, way: str, *inputs: Tensor) -> nn.Module:
    made = autofuse.optimize(model, inputs if way == "with examples" else None, tune=False)
    made(*inputs)
    return made


@WAYS
def test_a_lock_stays_unchanged(way: str) -> None:
    model, plain = Locked(), Locked()
    fused = optimized(model, way, X)
    assert not fused.lock.locked() and "AF201" in fused_rules(fused)  # type: ignore[union-attr]
    for _ in range(3):
        torch.testing.assert_close(fused(X), plain(X))
    assert not fused.lock.locked()  # type: ignore[union-attr]


GLOBAL = threading.Lock()


class LockedOutside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with GLOBAL:
            return torch.softmax(x @ x.mT * 0.3, -1) @ x


@WAYS
def test_a_global_lock_stays_unchanged(way: str) -> None:
    fused = optimized(LockedOutside(), way, X)
    assert not GLOBAL.locked()
    torch.testing.assert_close(fused(X), LockedOutside()(X))


@WAYS
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_strides_ends_no_process(way: str) -> None:
    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    fused = optimized(Act(), way, torch.randn(2, 3, 4))
    fused(torch.randn(2, 3, 4))
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    for x in (nested, torch.randn(2, 3, 4).to_mkldnn()):
        expected = outcome(Act(), x)
        assert outcome(fused, x) == expected or expected == "NotImplementedError"  # torch has a SiLU of nested tensors


def outcome(module: nn.Module, x: Tensor) -> Any:
    """The result of a call, or the kind of error that it raises."""
    try:
        made = module(x)
    except Exception as error:
        return type(error).__name__
    return [t.tolist() for t in made.unbind()] if made.is_nested else made.to_dense().tolist()


@WAYS
@pytest.mark.parametrize("name", ["__matmul__", "__mul__", "softmax", "transpose"])
def test_a_method_or_an_operator_of_tensors_that_is_replaced_is_seen(way: str, name: str) -> None:
    fused, before = optimized(Attend(), way, X), getattr(Tensor, name)
    assert fused_rules(fused) == {"AF101"}
    own = name in vars(Tensor)
    setattr(Tensor, name, lambda self, *a, **k: torch.mul(before(self, *a, **k), 2))
    try:
        torch.testing.assert_close(fused(X), Attend()(X))
    finally:
        setattr(Tensor, name, before) if own else delattr(Tensor, name)
    torch.testing.assert_close(fused(X), Attend()(X))


class Config:
    scale = 0.3


class OfDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        scale = vars(self)["config"].scale * self.__dict__.get("extra", 1.0)
        return torch.softmax(x @ x.mT * scale, -1) @ x


@WAYS
def test_a_name_that_is_added_to_a_dict_later_is_noticed(way: str) -> None:
    fused, plain = optimized(OfDict(), way, X), OfDict()
    torch.testing.assert_close(fused(X), plain(X))
    fused.extra = plain.extra = 0.5
    torch.testing.assert_close(fused(X), plain(X))


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, dtype=torch.float64), nn.Linear(16, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(F.linear(x, self.up.weight) + self.up.bias))


@WAYS
def test_a_bias_that_becomes_none_raises_as_before(way: str) -> None:
    fused = optimized(Biased(), way, X)
    fused.up.bias = None  # type: ignore[union-attr, assignment]
    with pytest.raises(TypeError):
        fused(X)


def counting(function: Any) -> Any:
    @functools.wraps(function)
    def counted(self: nn.Module, x: Tensor) -> Any:
        counted.calls += 1  # type: ignore[attr-defined]
        return function(self, x) * counted.factor  # type: ignore[attr-defined]

    counted.calls, counted.factor = 0, 1.0  # type: ignore[attr-defined]
    return counted


@WAYS
def test_a_decorators_attributes_on_the_forward_are_shared(way: str) -> None:
    class Counted(nn.Module):
        @counting
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.mT, -1) @ x

    forward: Any = Counted.forward
    expected = Counted()(X)
    fused = autofuse.optimize(Counted(), (X,) if way == "with examples" else None, tune=False)
    before = Counted.forward.calls
    torch.testing.assert_close(fused(X), expected)
    assert Counted.forward.calls == forward.calls == before + 1
    Counted.forward.factor = 2.0
    torch.testing.assert_close(fused(X), expected * 2)


def test_a_called_module_is_not_reported_as_uncalled() -> None:
    class Printing(Attend):
        def forward(self, x: Tensor) -> Tensor:
            print(end="")
            return super().forward(x)

    fused = autofuse.optimize(nn.Sequential(Printing()), tune=False)
    fused(X)
    text = " ".join(str(autofuse.report(fused)).split())
    assert "never called" not in text and "print" in text, text


def test_an_internal_error_at_the_first_call_does_not_reach_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("of ours")

    monkeypatch.setattr("autofuse.fx.session.optimize.fuse", fails)
    fused = autofuse.optimize(Attend(), tune=False)
    torch.testing.assert_close(fused(X), Attend()(X))
    assert "of ours" in " ".join(str(autofuse.report(fused)).split())
    torch.testing.assert_close(fused(X), Attend()(X))
