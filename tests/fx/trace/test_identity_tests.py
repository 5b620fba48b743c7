"""Comparisons by identity are found in code."""

from __future__ import annotations

from typing import Any

from torch import nn

from autofuse.fx.trace.identity_tests import compares_arguments, outsiders

MISSING = object()


class Compares(nn.Module):
    def forward(self, a: Any, b: Any) -> bool:
        return a is b


class ComparesWithNone(nn.Module):
    def forward(self, a: Any, b: Any) -> bool:
        return a is None or b is not None or type(a) is dict


class ComparesWithItsOwn(nn.Module):
    mask: Any

    def forward(self, a: Any, b: Any, c: Any) -> bool:
        return a is self.mask or MISSING is b or c is None


def test_names_that_are_compared_with_something_from_outside_are_told() -> None:
    assert outsiders(ComparesWithItsOwn.forward.__code__) == {"a", "b"}
    assert not outsiders(Compares.forward.__code__)
    assert not outsiders(ComparesWithNone.forward.__code__)


def test_a_class_that_compares_two_arguments_is_told() -> None:
    assert compares_arguments(Compares)
    assert not compares_arguments(ComparesWithNone)
