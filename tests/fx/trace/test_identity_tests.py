"""Comparisons by `is` are found in code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.trace.identity_tests import compares_arguments, compares_objects, names_compared_with_nonlocal

MISSING = object()


class Compares(nn.Module):
    def forward(self, a: Any, b: Any) -> bool:
        return a is b


class ComparesWithNone(nn.Module):
    def forward(self, a: Any, b: Any) -> bool:
        return a is None or b is not None or type(a) is dict


class ComparesWithAttributes(nn.Module):
    mask: Any

    def forward(self, a: Any, b: Any, c: Any) -> bool:
        return a is self.mask or MISSING is b or c is None


def test_names_that_are_compared_with_nonlocal_values_are_found() -> None:
    assert names_compared_with_nonlocal(ComparesWithAttributes.forward.__code__) == {"a", "b"}
    assert not names_compared_with_nonlocal(Compares.forward.__code__)
    assert not names_compared_with_nonlocal(ComparesWithNone.forward.__code__)


def test_a_class_that_compares_two_arguments_is_found() -> None:
    assert compares_arguments(Compares)
    assert not compares_arguments(ComparesWithNone)


class ComparesWithConstants(nn.Module):
    def forward(self, a: Any, b: Any) -> bool:
        return a is None or b is not None


def test_comparisons_of_two_objects_are_found() -> None:
    assert compares_objects(Compares.forward.__code__)
    assert not compares_objects(ComparesWithConstants.forward.__code__)


SPECIAL: list[nn.Module] = []


def first() -> nn.Module:
    return SPECIAL[0]


class AttentionBase(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child: nn.Module | None = None

    def scale(self) -> float:
        return 1.0

    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.transpose(-2, -1) * self.scale(), -1) @ q


class BySubscript(AttentionBase):
    def scale(self) -> float:
        return 2.0 if self is SPECIAL[0] else 1.0


class Reversed(AttentionBase):
    def scale(self) -> float:
        return 1.0 if SPECIAL[0] is not self else 2.0


class ByCall(AttentionBase):
    def scale(self) -> float:
        return 2.0 if first() is self else 1.0


class ByLoop(AttentionBase):
    def scale(self) -> float:
        for module in SPECIAL:
            if module is self:
                return 2.0
        return 1.0


class ByGenerator(AttentionBase):
    def scale(self) -> float:
        return 2.0 if any(module is self for module in SPECIAL) else 1.0


class ByName(AttentionBase):
    def scale(self) -> float:
        one, other = self, SPECIAL[0]
        return 2.0 if one is other else 1.0


class ByEquality(AttentionBase):
    def scale(self) -> float:
        return 2.0 if self == SPECIAL[0] else 1.0


class ByMembership(AttentionBase):
    def scale(self) -> float:
        return 2.0 if self in SPECIAL else 1.0


class ComparesChildWithNone(AttentionBase):
    def scale(self) -> float:
        return 1.0 if self.child is None else 3.0


COMPARED_BY_IS = (BySubscript, Reversed, ByCall, ByLoop, ByGenerator, ByName)
OTHERS = (ByEquality, ByMembership, ComparesChildWithNone)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", COMPARED_BY_IS + OTHERS)
def test_a_module_that_compares_itself_with_a_global_computes_the_same(kind: type[AttentionBase], verify: bool) -> None:
    model, x = nn.Sequential(kind(), kind()), torch.randn(2, 3, 4, dtype=torch.float64)
    SPECIAL[:] = [model[1]]
    expected = model(x)
    autofuse.optimize(model, x, tune=False, verify=verify)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=0)
    if kind in COMPARED_BY_IS:
        codes = {s.reason_code for s in autofuse.report(model)}
        assert codes == {"forward-compares-argument"}
    if kind is ComparesChildWithNone:
        assert all(s.status == "fused" for s in autofuse.report(model))
    SPECIAL.clear()
