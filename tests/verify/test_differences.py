"""autofuse.verify.differences: differences that are found before numbers are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autofuse.verify.differences import are_equal_runs, are_equal_tensors, find_difference_in_kind, tensor_difference
from autofuse.verify.runs import ModuleRun

x, whole = torch.randn(3), torch.arange(3)


def run_with(**results: Any) -> ModuleRun:
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
def test_a_difference_in_kind_is_described(one: dict[str, Any], other: dict[str, Any], difference: str) -> None:
    assert find_difference_in_kind(run_with(**one), run_with(**other)) == ("result", difference)


def test_floating_point_entries_are_not_compared() -> None:
    assert find_difference_in_kind(run_with(result=x), run_with(result=x + 1)) is None
    assert not are_equal_runs(run_with(result=x), run_with(result=x + 1)) and are_equal_runs(
        run_with(result=x), run_with(result=x.clone())
    )


def test_a_lost_or_additional_gradient_is_described() -> None:
    with_one, without = ModuleRun({"result": x}, with_gradient=frozenset({"result"})), run_with(result=x)
    assert find_difference_in_kind(with_one, without) == ("result", "no longer carries a gradient")
    assert find_difference_in_kind(without, with_one) == ("result", "carries a gradient")


def test_additional_state_is_not_a_difference() -> None:
    assert find_difference_in_kind(run_with(result=x), run_with(result=x, **{"self.cache after the call": x})) is None


def test_nan_equals_nan() -> None:
    assert are_equal_tensors(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]))
    assert not are_equal_tensors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]))
    assert are_equal_tensors(None, None) and not are_equal_tensors(None, torch.ones(1))


def test_two_runs_with_the_same_nan_are_equal() -> None:
    nan = torch.tensor([1.0, float("nan")])
    assert are_equal_runs(run_with(result=nan), run_with(result=nan.clone())) and not are_equal_runs(
        run_with(result=nan), run_with(result=nan.nan_to_num())
    )
    with_gradient, without = ModuleRun({"result": x}, {"x": nan}), ModuleRun({"result": x}, {"x": None})
    assert are_equal_runs(with_gradient, with_gradient) and not are_equal_runs(with_gradient, without)


def test_a_difference_of_two_tensors_is_described() -> None:
    assert tensor_difference(x, x + 1) == ""
    assert tensor_difference(whole, whole.flip(0)) == "has other entries"
    assert tensor_difference(x, whole) == "has dtype torch.int64 instead of torch.float32"


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
def test_other_objects_are_compared_by_type_and_value(one: Any, other: Any, difference: str) -> None:
    assert find_difference_in_kind(run_with(result=one), run_with(result=other)) == ("result", difference)
    assert find_difference_in_kind(run_with(result=one), run_with(result=one)) is None


def test_objects_of_one_type_without_equality_count_as_equal() -> None:
    class Anything:
        pass

    assert find_difference_in_kind(run_with(result=Anything()), run_with(result=Anything())) is None


def test_complex_entries_are_not_compared_but_those_of_a_mask_are() -> None:
    assert tensor_difference(torch.ones(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64)) == ""
    assert tensor_difference(torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool))
    assert tensor_difference(x, x.to("meta")).startswith("has device ")


def test_a_result_that_is_a_tensor_in_one_run_only_is_not_missing() -> None:
    assert find_difference_in_kind(run_with(result=x), run_with(result=None)) == (
        "result",
        "is None instead of a tensor",
    )


def test_runs_are_equal_only_if_all_tensors_and_gradients_are() -> None:
    one = ModuleRun({"a": x, "b": x}, {"x": x, "y": x})
    assert are_equal_runs(one, ModuleRun({"a": x, "b": x.clone()}, {"x": x.clone(), "y": x}))
    assert not are_equal_runs(one, ModuleRun({"a": x, "b": x + 1}, {"x": x, "y": x}))
    assert not are_equal_runs(one, ModuleRun({"a": x, "b": x}, {"x": x, "y": x + 1}))
    assert not are_equal_runs(one, ModuleRun({"a": x, "b": x}, {"x": x}))
    assert not are_equal_runs(one, ModuleRun({"a": x, "b": x.double()}, {"x": x, "y": x}))
