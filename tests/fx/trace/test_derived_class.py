"""A class is derived, and neither the class that it is derived from nor its metaclass hears of it."""

from __future__ import annotations

import abc
import functools
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.trace.derived_class import TWIN, derived_class
from tests.fx.conftest import assert_same, fused_rules, optimized

HEARD: list[str] = []


class Registry(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        HEARD.append(name)
        return super().__new__(mcs, name, bases, body)

    @property
    def scale(cls) -> float:
        return 0.5


class Final(nn.Module):
    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("this class is final")


class Listed(nn.Module, metaclass=Registry):
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


@pytest.mark.parametrize("cls", [Final, Listed, Concrete, Slotted, Items, nn.Linear])
def test_an_instance_of_it_is_one_of_the_class(cls: type) -> None:
    HEARD.clear()
    made = derived_class(cls, {"more": 3})
    one = made(2, 2) if cls is nn.Linear else made()
    assert isinstance(one, cls) and issubclass(made, cls) and one.more == 3 and vars(made)[TWIN] is cls
    assert (made.__name__, made.__module__, made.__qualname__) == (cls.__name__, cls.__module__, cls.__qualname__)
    assert type(made) is type(cls) and not HEARD


def test_one_can_be_derived_from_one() -> None:
    made = derived_class(derived_class(Final, {"less": 2}), {"more": 3})
    assert isinstance(made(), Final) and (made.less, made.more) == (2, 3)


def test_what_no_class_can_be_derived_from_is_told() -> None:
    with pytest.raises(TypeError):
        derived_class(bool, {})


def test_what_is_changed_in_the_class_later_is_seen() -> None:
    class Own(nn.Module):
        scale = 1.0

        def heat(self) -> float:
            return 1.0

    one = derived_class(Own, {})()
    assert (one.scale, one.heat()) == (1.0, 1.0)
    Own.scale, Own.heat = 2.0, lambda self: 2.0  # type: ignore[method-assign]
    assert (one.scale, one.heat()) == (2.0, 2.0)
    del Own.scale
    assert not hasattr(one, "scale")


def test_super_abstract_methods_and_single_dispatch_find_the_class() -> None:
    class Louder(Concrete):
        def scale(self) -> float:
            return super().scale() * 2

    @functools.singledispatch
    def told(value: object) -> str:
        return "anything"

    told.register(Louder, lambda value: "louder")
    one = derived_class(Louder, {})()
    assert one.scale() == 1.0 and told(one) == "louder" and isinstance(one, Abstract)


class Attend(nn.Module):
    MADE: ClassVar[list[type]] = []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Attend.MADE.append(cls)

    def forward(self, q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT * (1 + len(self.MADE)), -1) @ q


def test_a_model_that_registers_what_is_derived_from_it_computes_the_same() -> None:
    model, q = Attend(), torch.randn(2, 4, 4, requires_grad=True)
    before = model(q)
    fused = optimized(model, q)
    assert fused_rules(fused) == {"AF101"} and not Attend.MADE
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
