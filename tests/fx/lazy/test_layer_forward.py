"""A layer with a forward of autofuse runs what its class defines, and its copies run their own forward."""

from __future__ import annotations

import copy
import functools
import pickle
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy.head import make_lazy, restore_lazy
from autofuse.fx.lazy.layer_forward import forward_of_class, is_plain_linear
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.padded_linear import restore_products, use_padded_products
from autofuse.fx.lazy.tensor import LazyLogits

TORCHS = nn.Linear.forward
BY_HAND = frozenset(vars(nn.Linear(1, 1)))


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Inherited(Doubled):
    pass


class Partial(nn.Linear):
    forward = functools.partial(torch.mul, other=3)  # type: ignore[assignment]


class Static(nn.Linear):
    @staticmethod
    def forward(input: Tensor) -> Tensor:  # type: ignore[override]
        return input * 5


class AProperty(nn.Linear):
    @property
    def forward(self) -> Callable[[Tensor], Tensor]:  # type: ignore[override]
        return lambda x: F.linear(x, self.weight) * 7


class Plain(nn.Linear):
    pass


def tripled(self: nn.Linear, input: Tensor) -> Tensor:
    return F.linear(input, self.weight, self.bias) * 3


@contextmanager
def another_class(head: nn.Linear, cls: type) -> Iterator[None]:
    head.__class__ = cls
    yield
    head.__class__ = nn.Linear


@contextmanager
def another_function(head: nn.Linear) -> Iterator[None]:
    nn.Linear.forward = tripled  # type: ignore[method-assign]
    yield
    nn.Linear.forward = TORCHS  # type: ignore[method-assign]


@contextmanager
def other_code(head: nn.Linear) -> Iterator[None]:
    code = TORCHS.__code__
    TORCHS.__code__ = tripled.__code__
    yield
    TORCHS.__code__ = code


CHANGES: dict[str, Any] = {
    **{c.__name__: lambda head, c=c: another_class(head, c) for c in (Doubled, Inherited, Partial, Static, AProperty)},
    "a function": another_function,
    "code": other_code,
}


FORWARDS = {"lazy": (make_lazy, restore_lazy), "padded": (use_padded_products, restore_products)}


def a_head(kind: str = "lazy") -> nn.Linear:
    torch.manual_seed(0)
    head = nn.Linear(4, 4)
    FORWARDS[kind][0](head)
    return head


def an_input() -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)


def run(head: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """The result and the gradient of the weight."""
    head.zero_grad()
    with lazy_at_any_size():
        result = head(an_input())
        result.sum().backward()
    return torch.as_tensor(result.detach()).clone(), head.weight.grad


@pytest.mark.parametrize("kind", FORWARDS)
@pytest.mark.parametrize("name", CHANGES)
def test_what_the_class_defines_later_runs(name: str, kind: str) -> None:
    ours, plain = a_head(kind), a_head(kind)
    FORWARDS[kind][1](plain)
    assert vars(plain).keys() == BY_HAND
    for _ in range(2):
        with CHANGES[name](ours), CHANGES[name](plain):
            expected, found = run(plain), run(ours)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(run(ours), run(plain))


@pytest.mark.parametrize("name", ["a function", "code"])
def test_a_layer_whose_class_was_changed_before_stays_plain(name: str) -> None:
    head = nn.Linear(4, 8)
    assert is_plain_linear(head)
    with CHANGES[name](head):
        assert not is_plain_linear(head)


def test_a_subclass_without_a_forward_stays_lazy() -> None:
    head = a_head()
    with another_class(head, Plain), lazy_at_any_size():
        assert isinstance(head(an_input()), LazyLogits)


COPIES: dict[str, Callable[[nn.Linear], nn.Linear]] = {
    "copy": copy.copy,
    "pickle": lambda head: pickle.loads(pickle.dumps(head)),
    "pickle, protocol 2": lambda head: pickle.loads(pickle.dumps(head, 2)),
    "deepcopy": copy.deepcopy,
    "copy of a deepcopy": lambda head: copy.copy(copy.deepcopy(head)),
    "deepcopy of a deepcopy": lambda head: copy.deepcopy(copy.deepcopy(head)),
    "a part of a copied model": lambda head: copy.deepcopy(nn.Sequential(head, head))[1],  # type: ignore[return-value]
}
WITH_FORWARD = {"deepcopy", "deepcopy of a deepcopy", "a part of a copied model"}


@pytest.mark.parametrize("kind", FORWARDS)
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("change", ["weight", *(c.__name__ for c in (Doubled, AProperty))])
def test_a_copy_runs_its_own_forward(name: str, change: str, kind: str) -> None:
    head = a_head(kind)
    made = COPIES[name](head)
    assert ("forward" in vars(made)) == (name in WITH_FORWARD)
    made.__dict__["_parameters"] = {
        k: nn.Parameter(p.detach() + 1) for k, p in made._parameters.items() if p is not None
    }
    plain = nn.Linear(4, 4)
    plain.load_state_dict(made.state_dict())
    if change == "weight":
        torch.testing.assert_close(run(made), run(plain))
        return
    with CHANGES[change](made), CHANGES[change](plain):
        torch.testing.assert_close(run(made), run(plain))


@pytest.mark.parametrize("kind", FORWARDS)
def test_a_pickle_and_a_copy_have_the_names_of_a_plain_layer(kind: str) -> None:
    head = a_head(kind)
    assert vars(copy.copy(head)).keys() == vars(pickle.loads(pickle.dumps(head))).keys() == BY_HAND
    assert type(vars(pickle.loads(pickle.dumps(head)))) is dict


def test_a_replaced_weight_is_not_lazy_in_a_copy() -> None:
    head = a_head()
    head.weight = nn.Parameter(torch.ones(4, 4))
    with lazy_at_any_size():
        assert not isinstance(copy.deepcopy(head)(an_input()), LazyLogits)


def test_the_forward_of_a_class_is_found_past_an_attribute() -> None:
    head = a_head()
    assert forward_of_class(head) == types.MethodType(TORCHS, head)
