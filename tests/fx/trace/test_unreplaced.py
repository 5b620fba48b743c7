"""Tests notice replaced names, forwards, defaults and caches. Equal tests are the same function."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from autofuse.fx.trace.unreplaced import (
    combined_test,
    uncleared_cache,
    unreplaced_forwards,
    unreplaced_functions,
    unreplaced_methods,
    unreplaced_names,
    without_attributes,
    without_new_methods,
)


def test_a_replaced_name_is_noticed() -> None:
    namespace = {"len": len, "torch": torch, "x": 1}
    held = {"len": len, "torch": torch}
    test = combined_test([unreplaced_names(namespace, held, ["range"])])
    assert test() and combined_test([unreplaced_names(namespace, held, ["range"])]) is test
    namespace["x"] = 2
    assert test()
    namespace["range"] = range
    assert not test()
    del namespace["range"]
    namespace["len"] = max
    assert not test()
    del namespace["len"]
    with pytest.raises(KeyError):  # a guard that raises has failed
        test()


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_replaced_forward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test = combined_test([unreplaced_forwards([Layer, nn.Linear])])
    assert test()
    monkeypatch.setattr(Layer, "forward", lambda self, x: x * 2)
    assert not test()


def test_replaced_code_and_defaults_are_noticed() -> None:
    def scaled(x: float, by: float = 2.0) -> float:
        return x * by

    test = combined_test([unreplaced_functions([scaled])])
    assert test()
    scaled.__defaults__ = (3.0,)
    assert not test()

    def doubled(x: float) -> float:
        return x * 2

    test = combined_test([unreplaced_functions([doubled])])
    assert test()
    doubled.__code__ = (lambda x: x * 3).__code__
    assert not test()


def test_a_replaced_method_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def first(self) -> int:
            return 1

    class Derived(Base):
        second = 2

    test = combined_test([unreplaced_methods(Derived, ["first", "second"])])
    assert test() and combined_test([unreplaced_methods(Derived, ["first", "second"])]) is test
    monkeypatch.setattr(Derived, "first", lambda self: 3, raising=False)
    assert not test()


def test_a_cache_that_was_extended_is_noticed() -> None:
    @functools.lru_cache
    def doubled(x: int) -> int:
        return 2 * x

    doubled(1)
    test = combined_test([uncleared_cache(doubled)])
    doubled(1)
    assert test()
    doubled(2)
    assert not test()


def test_a_special_method_that_is_added_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Block(nn.Module):
        pass

    for cls in (Block, nn.Module):
        test = combined_test([without_new_methods(cls)])
        assert test()
        with monkeypatch.context() as patch:
            patch.setattr(cls, "extra", 1, raising=False)
            assert test()
            patch.setattr(cls, "__bool__", lambda self: False, raising=False)
            assert not test()


def test_a_replaced_lookup_of_a_class_of_torch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test = combined_test([without_new_methods(nn.Module)])
    plain = nn.Module.__getattr__
    monkeypatch.setattr(nn.Module, "__getattr__", lambda self, name: plain(self, name))
    assert not test()


def test_an_attribute_that_is_added_to_a_class_of_torch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test = combined_test([without_attributes(nn.Module, ["extra"])])
    monkeypatch.setattr(nn.Module, "other", 1, raising=False)
    assert test()
    monkeypatch.setattr(nn.Module, "extra", 1, raising=False)
    assert not test()
