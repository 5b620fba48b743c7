"""Results and gradients of two steps are compared by the digits that they have."""

from __future__ import annotations

import pytest
import torch

from autofuse.fx.session.head_steps import relative_errors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_gradient_that_is_zero_apart_from_rounding_has_no_digits_to_compare(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    plain = {"gradient of weight": torch.ones(3, dtype=dtype), "gradient of key.bias": torch.full((3,), eps / 4)}
    lazy = {**plain, "gradient of key.bias": torch.full((3,), -eps / 8)}
    errors = relative_errors(*({n: t.to(dtype) for n, t in each.items()} for each in (plain, lazy)))
    assert errors["gradient of weight"] == 0
    assert errors["gradient of key.bias"] <= eps**0.5


def test_a_small_gradient_that_differs_is_found() -> None:
    plain = {"gradient of a": torch.ones(3).double(), "gradient of b": torch.full((3,), 1e-6).double()}
    errors = relative_errors(plain, {**plain, "gradient of b": torch.full((3,), 1.1e-6).double()})
    assert errors["gradient of b"] == pytest.approx(0.1)


def test_a_result_is_compared_by_its_own_entries() -> None:
    plain = {"gradient of a": torch.full((3,), 1e6), "result[0]": torch.full((3,), 1e-6)}
    errors = relative_errors(plain, {**plain, "result[0]": torch.full((3,), 2e-6)})
    assert errors["result[0]"] == pytest.approx(1.0)


@pytest.mark.parametrize("other", [torch.ones(2), torch.ones(3).double(), torch.full((3,), float("nan"))])
def test_another_shape_or_dtype_or_nan_differs(other: torch.Tensor) -> None:
    (error,) = relative_errors({"result[0]": torch.ones(3)}, {"result[0]": other}).values()
    assert not error <= 1e30
