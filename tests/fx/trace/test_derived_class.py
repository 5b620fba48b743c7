"""Deriving a class runs no code of the class or its metaclass."""

from __future__ import annotations

import abc
import functools
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.trace.derived_class import TWIN, derived_class
from tests.fx.conftest import assert_same, fused_rules, optimized

CREATED: list[str] = []


class Registry(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        CREATED.append(name)
        return super().__new__(mcs, name, bases, body)

    @property
    def scale(cls) -> float:
        return 0.5


class Final(nn.Module):
    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("this class is final")


class Registered(nn.Module, metaclass=Registry):
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def scale(self) -> float: ...


class Concrete(Abstract):
    def scale(self) -> float:
        return 0.5


class Slotted:
    __slots__ = ("a", "b")


class Items(list[int]):
    pass


@pytest.mark.parametrize("cls", [Final, Registered, Concrete, Slotted, Items, nn.Linear])
def test_an_instance_of_the_derived_class_is_an_instance_of_the_class(cls: type) -> None:
    CREATED.clear()
    derived = derived_class(cls, {"more": 3})
    instance = derived(2, 2) if cls is nn.Linear else derived()
    assert isinstance(instance, cls) and issubclass(derived, cls) and instance.more == 3 and vars(derived)[TWIN] is cls
    assert (derived.__name__, derived.__module__, derived.__qualname__) == (
        cls.__name__,
        cls.__module__,
        cls.__qualname__,
    )
    assert type(derived) is type(cls) and not CREATED


def test_a_derived_class_can_be_derived_from() -> None:
    derived = derived_class(derived_class(Final, {"less": 2}), {"more": 3})
    assert isinstance(derived(), Final) and (derived.less, derived.more) == (2, 3)


def test_a_class_that_allows_no_subclass_raises() -> None:
    with pytest.raises(TypeError):
        derived_class(bool, {})


def test_later_changes_of_the_class_are_visible() -> None:
    class Own(nn.Module):
        scale = 1.0

        def heat(self) -> float:
            return 1.0

    instance = derived_class(Own, {})()
    assert (instance.scale, instance.heat()) == (1.0, 1.0)
    Own.scale, Own.heat = 2.0, lambda self: 2.0  # type: ignore[method-assign]
    assert (instance.scale, instance.heat()) == (2.0, 2.0)
    del Own.scale
    assert not hasattr(instance, "scale")


def test_super_abstract_methods_and_single_dispatch_find_the_class() -> None:
    class Louder(Concrete):
        def scale(self) -> float:
            return super().scale() * 2

    @functools.singledispatch
    def describe(value: object) -> str:
        return "anything"

    describe.register(Louder, lambda value: "louder")
    instance = derived_class(Louder, {})()
    assert instance.scale() == 1.0 and describe(instance) == "louder" and isinstance(instance, Abstract)


class Attend(nn.Module):
    SUBCLASSES: ClassVar[list[type]] = []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Attend.SUBCLASSES.append(cls)

    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT * (1 + len(self.SUBCLASSES)), -1) @ q


def test_a_model_that_registers_its_subclasses_computes_the_same() -> None:
    model, q = Attend(), torch.randn(2, 4, 4, requires_grad=True)
    before = model(q)
    fused = optimized(model, q)
    assert fused_rules(fused) == {"AF101"} and not Attend.SUBCLASSES
    torch.testing.assert_close(model(q), before)
    assert_same(model, fused, q)


def test_a_final_class_is_fused() -> None:
    class Closed(nn.Module):
        def __init_subclass__(cls, **options: Any) -> None:
            raise TypeError("this class is final")

        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    q = torch.randn(2, 4, 4, requires_grad=True)
    fused = optimized(Closed(), q)
    assert fused_rules(fused) == {"AF101"}
    assert_same(Closed(), fused, q)
