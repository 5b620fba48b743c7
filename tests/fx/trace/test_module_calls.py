"""Which calls of a module are of the same kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.fx.trace.module_calls import kind_of


class Cache:
    """An object with tensors in it, such as a cache of keys and values."""

    def __init__(self, *held: Tensor) -> None:
        self.held = held


class Overriding(Tensor):
    """A tensor class that overrides torch's functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


X = torch.ones(2, 3)
EQUAL = {
    "numbers and sizes": (((X, 1), {}), ((torch.zeros(4, 5), 1), {})),
    "the contents of an object": (((X, Cache()), {}), ((X, Cache(X)), {})),
    "tensors in containers": ((((X, [X]),), {"a": {"b": X}}), (((X + 1, [X]),), {"a": {"b": X[:1]}})),
}
OTHER = {
    "a flag": (((X, True), {}), ((X, False), {})),
    "a number of another type": (((X, 1), {}), ((X, 1.0), {})),
    "a dtype": (((X,), {}), ((X.double(),), {})),
    "a dimension": (((X,), {}), ((X[0],), {})),
    "a tensor in a tuple": ((((X, X),), {}), (((X, X[0]),), {})),
    "a list instead of a tuple": ((((X,),), {}), (([X],), {})),
    "a key": (((X,), {"a": {"b": X}}), ((X,), {"a": {"c": X}})),
    "a class of objects": (((X, Cache()), {}), ((X, object()), {})),
    "by keyword": (((X, X), {}), ((X,), {"y": X})),
}


@pytest.mark.parametrize("case", EQUAL)
def test_these_calls_are_of_one_kind(case: str) -> None:
    one, other = EQUAL[case]
    assert kind_of(one, True) == kind_of(other, True)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", OTHER)
def test_these_calls_are_of_two_kinds(case: str) -> None:
    one, other = OTHER[case]
    assert kind_of(one, True) != kind_of(other, True)  # type: ignore[arg-type]
    assert kind_of(one, True) != kind_of(one, False)  # type: ignore[arg-type]


def test_no_function_of_an_overriding_tensor_is_called() -> None:
    assert kind_of(((torch.ones(2).as_subclass(Overriding),), {}), True) is None
    assert kind_of((([X, torch.ones(2).as_subclass(Overriding)],), {}), True) is None
