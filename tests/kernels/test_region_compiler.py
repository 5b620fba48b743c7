"""If a region does not compile for the widest vectors, Inductor's test programs decide about the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.kernels import packages, region_compiler
from autofuse.kernels.region_compiler import compilation
from autofuse.torch_private import on_demand

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")


def _plus_one(x: Tensor) -> Tensor:
    return x + 1.0


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether test programs were left out, for each attempt to compile. Attempts with presumed vectors fail."""
    found, presumed, compiles = list[bool](), list[bool](), on_demand.compile_fx.compile_fx_inner

    @contextmanager
    def presume() -> Iterator[bool]:
        presumed.append(True)
        yield True
        presumed.clear()

    def compile_unless_presumed(*args: Any, **kwargs: Any) -> Any:
        found.append(bool(presumed))
        if presumed:
            raise RuntimeError("the assembler does not know this instruction")
        return compiles(*args, **kwargs)

    monkeypatch.setattr(region_compiler, "presumed_widest_vectors", presume)
    monkeypatch.setattr(on_demand.compile_fx, "compile_fx_inner", compile_unless_presumed)
    return found


def test_a_region_that_fails_with_presumed_vectors_is_compiled_again(attempts: list[bool]) -> None:
    x = torch.randn(8, 4)
    made = compilation(_plus_one, (x,), [(0,)], "")
    assert attempts == [True, False]
    torch.testing.assert_close(made.runner()(x), x + 1.0)
