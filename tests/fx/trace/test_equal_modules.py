"""Two modules are equal only if a plan for one fits the other."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from autofuse import ops
from autofuse.fx.trace.equal_modules import Structure, tensors_held_once
from autofuse.ops import lowered


class Norm(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps, self.sizes, self.weight = eps, [1, 2], nn.Parameter(torch.ones(4))
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Other(Norm):
    pass


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(Norm(), nn.Linear(4, 4)), nn.Sequential(Norm(), nn.Linear(4, 4))


def test_reading_a_buffer_leaves_its_memory_resizable() -> None:
    pair = Pair()
    mask = pair.one[0].mask
    assert isinstance(mask, Tensor) and _are_equal(pair, X) and mask.untyped_storage().resizable()


def _set_mask(m: Pair) -> None:
    assert isinstance(m.two[0].mask, Tensor)
    m.two[0].mask[0, 0] = 0


def _are_equal(pair: Pair, calls: tuple[Tensor, Tensor]) -> bool:
    once = tensors_held_once([pair])
    one, two = (Structure(m, ((x,), {}), once).key for m, x in zip((pair.one, pair.two), calls, strict=True))
    return one is not None and one == two


X = (torch.ones(2, 4), torch.zeros(2, 4))


def test_modules_that_differ_only_in_the_numbers_of_parameters_are_equal() -> None:
    assert _are_equal(Pair(), X)


CHANGES: dict[str, Callable[[Pair], object]] = {
    "a constant": lambda m: setattr(m.two[0], "eps", 1e-6),
    "the sign of zero": lambda m: (vars(m.one[0]).update(eps=0.0), vars(m.two[0]).update(eps=-0.0)),
    "the type of a constant": lambda m: (vars(m.one[0]).update(eps=1), vars(m.two[0]).update(eps=True)),
    "the contents of a buffer": _set_mask,
    "a dtype": lambda m: m.two.double(),
    "requires_grad": lambda m: m.two[0].get_parameter("weight").requires_grad_(False),
    "a hook": lambda m: m.two[0].register_forward_hook(lambda *_: None),
    "a hook on a gradient": lambda m: m.two[0].get_parameter("weight").register_hook(lambda g: g),  # type: ignore[no-untyped-call]
    "a forward of the instance": lambda m: setattr(m.two[0], "forward", types.MethodType(Norm.forward, m.two[0])),
    "a subclass": lambda m: m.two.register_module("0", Other()),
    "a class that was changed": lambda m: setattr(m.two[0], "__class__", Other),
    "the mode of a child": lambda m: m.two[0].eval(),
    "a shared parameter": lambda m: setattr(m.two[0], "weight", m.one[0].weight),
    "a parameter under two names": lambda m: setattr(m.two[1], "bias", m.two[0].weight),
    "an object": lambda m: [vars(n[0]).update(config=object()) for n in (m.one, m.two)],
    "a list": lambda m: setattr(m.two[0], "sizes", [1, 2, 3]),
    "no bias": lambda m: setattr(m.two[1], "bias", None),
    "strides": lambda m: setattr(m.two[0], "weight", nn.Parameter(torch.ones(4, 2)[:, 0])),
    "a later item of a dict": lambda m: [
        vars(n[0]).update(config={"a": 1, "b": 2, "c": c}) for c, n in enumerate((m.one, m.two))
    ],
    "a later key of a dict": lambda m: [
        vars(n[0]).update(config={0: 1, 1: 2, c: 3}) for c, n in enumerate((m.one, m.two), 2)
    ],
    "a false attribute named hook": lambda m: (
        vars(m.one[0]).update(hook=0),
        vars(m.two[0]).update(hook=None),
    ),
    "one more attribute": lambda m: setattr(m.two[0], "more", 1),
}


NORM = Norm()


class Indexed(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


@pytest.mark.parametrize("change", CHANGES)
def test_modules_that_differ_in_anything_else_are_not_equal(change: str) -> None:
    pair = Pair()
    CHANGES[change](pair)
    assert not _are_equal(pair, X)


@pytest.mark.parametrize("other", [
    torch.ones(3, 4), torch.ones(2, 4, dtype=torch.float64), torch.ones(2, 4, requires_grad=True), torch.ones(4, 2).t(),
])  # fmt: skip
def test_a_call_with_other_arguments_gives_another_structure(other: Tensor) -> None:
    assert not _are_equal(Pair(), (X[0], other))


@pytest.mark.parametrize(("value", "expected"), [
    (nn.Module, False), (1.5, False), (torch.float32, False), (torch, False), (vars(torch), False), (len, False),
    (lambda: None, False), ([1], False), ({"a": 1}, False), (object(), False), (Norm(), True), (Norm().forward, True),
    ([{"a": (Norm(),)}], True), (SimpleNamespace(of=[Norm()]), True), (weakref.ref(NORM), True), ([1].append, False),
    ([Norm()].append, True), (functools.partial(len, Norm()), True), ((i for i in "a"), True),
])  # fmt: skip
def test_a_value_may_be_owned_if_it_leads_to_a_module_or_may_do_so(value: object, expected: bool) -> None:
    assert Structure(Norm(), ((), {}), frozenset()).may_own(value) is expected


def test_a_module_may_own_a_function_whose_closure_contains_it() -> None:
    owned = Norm()
    assert Structure(owned, ((), {}), frozenset()).may_own(lambda: owned)


def test_a_function_that_holds_itself_is_not_owned() -> None:
    def again(n: int) -> int:
        return again(n - 1) if n else 0

    assert not Structure(Norm(), ((), {}), frozenset()).may_own(again)


def test_a_container_that_the_module_holds_is_owned() -> None:
    owner = Norm()
    owner.sizes = [1, 2]  # type: ignore[assignment]
    structure = Structure(owner, ((), {}), tensors_held_once([owner]))
    assert structure.may_own({"sizes": owner.sizes})
    assert not structure.may_own({"sizes": [1, 2]})
    assert structure.may_own(owner._parameters)


def test_integers_of_user_classes_are_listed_and_those_of_torch_are_compared() -> None:
    pair = [nn.Sequential(Indexed(i), nn.Softmax(dim=-1)) for i in range(2)]
    one, two = (Structure(m, ((), {}), tensors_held_once([m])) for m in pair)
    assert one.key is not None
    assert one.key == two.key
    assert one.differing_integers(two) == {("0", "index")}
    assert one.strict_key != two.strict_key
    other = Structure(nn.Sequential(Indexed(0), nn.Softmax(dim=1)), ((), {}), frozenset())
    assert other.key != one.key


OPERATIONS = (
    lowered.activation("gelu_tanh"), lowered.settled_activation("gelu_tanh"),
    lowered.settled_layer_norm(ops.layer_norm), *lowered.LAYER_NORMS_APART.values(), ops.attention,
)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_no_module_owns_an_operation_of_autofuse(operation: Callable[..., Tensor]) -> None:
    assert not Structure(Norm(), ((), {}), frozenset()).may_own(operation)


def test_a_function_with_the_name_of_an_operation_may_be_owned() -> None:
    owned = Norm()

    def gelu() -> Norm:
        return owned

    gelu.__module__ = lowered.__name__
    assert Structure(owned, ((), {}), frozenset()).may_own(gelu)
