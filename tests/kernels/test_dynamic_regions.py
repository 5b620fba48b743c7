"""A free region computes what its function computes, for all sizes, and compiles once for most of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofuse.kernels import packages
from autofuse.kernels.dynamic_regions import DynamicRegion, free_region

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


def _weight_rows(x: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
    scaled = x * factor if weight is None else x * weight * factor
    return scaled, scaled.sum(-1, keepdim=True)


def _check(made: DynamicRegion, x: Tensor, weight: Tensor | None) -> None:
    for found, exact in zip(made(x, weight, 0.5), _weight_rows(x, weight, 0.5), strict=True):
        torch.testing.assert_close(found, exact)


@pytest.fixture(scope="module")
def weighted() -> DynamicRegion:
    return free_region()(_weight_rows)


def test_any_sizes_run_in_one_compilation(weighted: DynamicRegion) -> None:
    for rows, columns in ((4, 40), (7, 33), (2, 500), (40, 40)):
        _check(weighted, torch.randn(rows, columns), torch.randn(rows, columns))
    assert sum(map(len, weighted._loops.values())) == 1
    assert not packages.COMPILER.missing()


def test_broadcast_dimensions_and_layouts_get_their_own_compilations(weighted: DynamicRegion) -> None:
    _check(weighted, torch.randn(6, 40), torch.randn(1, 40))
    _check(weighted, torch.randn(6, 40), torch.randn(6, 1))
    _check(weighted, torch.randn(6, 80)[:, :40], torch.randn(1, 40))
    _check(weighted, torch.randn(40, 6).t(), torch.randn(1, 40))
    _check(weighted, torch.randn(1, 40), None)


def test_named_dimensions_are_compiled_in() -> None:
    made = free_region(x=(-1,))(lambda x: x + x.shape[-1])
    for width in (3, 5, 3):
        assert torch.equal(made(torch.zeros(2, width)), torch.full((2, width), float(width)))
    assert len(made._loops) == 2


def test_a_function_that_does_not_compile_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_given_up", {})

    def reads_numbers(x: Tensor) -> Tensor:
        return x + float(x.sum())

    made = free_region()(reads_numbers)
    assert torch.equal(made(torch.ones(3, 2)), torch.full((3, 2), 7.0))
    assert "could not be compiled" in packages.COMPILER.missing()
