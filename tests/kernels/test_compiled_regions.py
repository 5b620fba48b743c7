"""A region computes what its function computes, for any number of rows, and compiles rarely."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofuse.kernels import packages
from autofuse.kernels.compiled_regions import CompiledRegion, region

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


def _scale_rows(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return (x * root if weight is None else x * root * weight), root


def _check(made: CompiledRegion, x: Tensor, weight: Tensor | None) -> None:
    expected = _scale_rows(x.double(), None if weight is None else weight.double(), 1e-6)
    for found, exact in zip(made(x, weight, 1e-6), expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def scaled() -> CompiledRegion:
    return region(rows="x")(_scale_rows)


def test_any_number_of_rows_runs_in_few_compilations(scaled: CompiledRegion) -> None:
    for rows in (64, 65, 100, 511, 300):
        _check(scaled, torch.randn(rows, 40), torch.randn(40))
    assert len(scaled._compilations) <= 2
    assert not packages.COMPILER.missing()


def test_one_row_and_no_row(scaled: CompiledRegion) -> None:
    _check(scaled, torch.randn(1, 40), torch.randn(40))
    assert scaled(torch.randn(0, 40), torch.randn(40), 1e-6)[0].shape == (0, 40)


def test_an_argument_may_be_none_and_rows_may_have_gaps(scaled: CompiledRegion) -> None:
    _check(scaled, torch.randn(70, 80)[:, :40], None)


def test_a_tensor_of_rows_may_be_none() -> None:
    def add(x: Tensor, residual: Tensor | None) -> Tensor:
        return x * 2 if residual is None else x * 2 + residual

    made = region(rows="x residual")(add)
    x = torch.randn(64, 40)
    torch.testing.assert_close(made(x, None), x * 2)
    torch.testing.assert_close(made(x, x), x * 3)
    assert not packages.COMPILER.missing()


def test_as_many_rows_as_columns(scaled: CompiledRegion) -> None:
    _check(scaled, torch.randn(40, 40), torch.randn(40))
    _check(scaled, torch.randn(41, 40), torch.randn(40))


def test_a_single_result_is_not_a_tuple() -> None:
    doubled = region(rows="x")(lambda x: x + x)
    assert torch.equal(doubled(torch.ones(4, 2)), torch.full((4, 2), 2.0))


def test_a_function_that_does_not_compile_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_given_up", {})

    def reads_numbers(x: Tensor) -> Tensor:
        return x * 2 if x.sum() < 0 else x * 3

    x = torch.randn(4, 2)
    assert torch.equal(region(rows="x")(reads_numbers)(x), reads_numbers(x))
    assert "could not be compiled" in packages.COMPILER.missing()


def test_names_of_rows_are_checked() -> None:
    with pytest.raises(ValueError, match="no parameter called y"):
        region(rows="y")(lambda x: x)
