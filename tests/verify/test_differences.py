"""autofuse.verify.differences: differences that are found before any number is compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autofuse.verify.differences import difference_in_kind, difference_of_tensors, equal, same_bits
from autofuse.verify.runs import ModuleRun

x, whole = torch.randn(3), torch.arange(3)


def of(**results: Any) -> ModuleRun:
    tensors = {k: v for k, v in results.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return ModuleRun(tensors, others={k: v for k, v in results.items() if k not in tensors})


@pytest.mark.parametrize(
    "one, other, difference",
    [
        ({"result": x}, {"result": x.double()}, "has dtype torch.float64 instead of torch.float32"),
        ({"result": x}, {"result": x[:2]}, "has shape (2,) instead of (3,)"),
        ({"result": x}, {}, "is missing from what the rewritten module does"),
        ({}, {"result": x}, "is returned by the rewritten module only"),
        ({"result": None}, {"result": x}, "is a tensor instead of None"),
        ({"result": whole}, {"result": whole + 1}, "has other entries"),
        ({"result": "a"}, {"result": "b"}, "is 'b' instead of 'a'"),
        ({"result": tuple}, {"result": list}, "is list instead of tuple"),
    ],
)
def test_a_difference_is_named(one: dict[str, Any], other: dict[str, Any], difference: str) -> None:
    assert difference_in_kind(of(**one), of(**other)) == ("result", difference)


def test_numbers_are_not_compared_here() -> None:
    assert difference_in_kind(of(result=x), of(result=x + 1)) is None
    assert not equal(of(result=x), of(result=x + 1)) and equal(of(result=x), of(result=x.clone()))


def test_a_gradient_lost_or_gained_is_named() -> None:
    with_one, without = ModuleRun({"result": x}, with_gradient=frozenset({"result"})), of(result=x)
    assert difference_in_kind(with_one, without) == ("result", "no longer carries a gradient")
    assert difference_in_kind(without, with_one) == ("result", "carries a gradient")


def test_more_state_than_before_is_no_difference() -> None:
    assert difference_in_kind(of(result=x), of(result=x, **{"self.cache after the call": x})) is None


def test_bits_are_the_same_with_nan() -> None:
    assert same_bits(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]))
    assert not same_bits(torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]))
    assert same_bits(None, None) and not same_bits(None, torch.ones(1))


def test_two_runs_with_the_same_nan_are_equal() -> None:
    nan = torch.tensor([1.0, float("nan")])
    assert equal(of(result=nan), of(result=nan.clone())) and not equal(of(result=nan), of(result=nan.nan_to_num()))
    with_gradient, without = ModuleRun({"result": x}, {"x": nan}), ModuleRun({"result": x}, {"x": None})
    assert equal(with_gradient, with_gradient) and not equal(with_gradient, without)


def test_what_differs_between_two_tensors_but_rounding_is_named() -> None:
    assert difference_of_tensors(x, x + 1) == ""
    assert difference_of_tensors(whole, whole.flip(0)) == "has other entries"
    assert difference_of_tensors(x, whole) == "has dtype torch.int64 instead of torch.float32"


@pytest.mark.parametrize(
    "one, other, difference",
    [
        (3, 4, "is 4 instead of 3"),
        (3, True, "is True instead of 3"),
        (torch.float32, torch.float16, "is torch.float16 instead of torch.float32"),
        (b"a", b"b", "is b'b' instead of b'a'"),
        (torch.Size([2]), torch.Size([3]), "is (3,) instead of (2,)"),
    ],
)
def test_what_is_no_tensor_is_compared_by_type_and_value(one: Any, other: Any, difference: str) -> None:
    assert difference_in_kind(of(result=one), of(result=other)) == ("result", difference)
    assert difference_in_kind(of(result=one), of(result=one)) is None


def test_objects_of_one_type_that_know_no_equality_are_alike() -> None:
    class Anything:
        pass

    assert difference_in_kind(of(result=Anything()), of(result=Anything())) is None


def test_complex_numbers_are_numbers_and_a_mask_is_not() -> None:
    assert difference_of_tensors(torch.ones(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64)) == ""
    assert difference_of_tensors(torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool))
    assert difference_of_tensors(x, x.to("meta")).startswith("has device ")


def test_what_stands_among_the_numbers_in_one_run_and_among_the_rest_in_the_other_is_there() -> None:
    assert difference_in_kind(of(result=x), of(result=None)) == ("result", "is None instead of a tensor")


def test_runs_are_equal_only_where_every_tensor_and_gradient_is() -> None:
    one = ModuleRun({"a": x, "b": x}, {"x": x, "y": x})
    assert equal(one, ModuleRun({"a": x, "b": x.clone()}, {"x": x.clone(), "y": x}))
    assert not equal(one, ModuleRun({"a": x, "b": x + 1}, {"x": x, "y": x}))
    assert not equal(one, ModuleRun({"a": x, "b": x}, {"x": x, "y": x + 1}))
    assert not equal(one, ModuleRun({"a": x, "b": x}, {"x": x}))
    assert not equal(one, ModuleRun({"a": x, "b": x.double()}, {"x": x, "y": x}))
