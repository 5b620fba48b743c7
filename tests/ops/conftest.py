"""Compares an operation with its reference: forward and every gradient, against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

Results = Tensor | tuple[Tensor, ...]
Operation = Callable[..., Results]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def assert_agree() -> Callable[..., None]:
    return _assert_agree


def _assert_agree(operation: Operation, reference: Operation, *args: Any, terms: int = 1, **kwargs: Any) -> None:
    """Asserts that errors of `operation` are within rounding, in results and gradients of floating arguments."""
    floating = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.is_floating_point()]
    eps = max(torch.finfo(a.dtype).eps for a in floating)
    expected = _run(reference, [_double(a) for a in args], {k: _double(a) for k, a in kwargs.items()})
    actual = _run(operation, list(args), kwargs)
    assert len(expected) == len(actual)
    for result, truth in zip(actual, expected, strict=True):
        if truth is None or result is None:
            assert all(t is None or not t.any() for t in (truth, result))
            continue
        assert result.shape == truth.shape
        if result.numel():
            bound = 8 * terms**0.5 * eps * truth.abs().max().clamp(min=1.0)
            assert (result.double() - truth).abs().max() <= bound


def _run(function: Operation, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor | None]:
    """Results, then gradients of all floating arguments, for fixed random output gradients."""
    args, kwargs = [_leaf(a) for a in args], {k: _leaf(a) for k, a in kwargs.items()}
    leaves = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.requires_grad]
    results = function(*args, **kwargs)
    results = (results,) if isinstance(results, Tensor) else results
    gradients = torch.autograd.grad(results, leaves, list(_cotangents(results)), allow_unused=True)
    return [r.detach() for r in results] + list(gradients)


def _cotangents(results: tuple[Tensor, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for r in results:
        yield torch.randn(r.shape, generator=generator).bfloat16().to(r.dtype)  # the same numbers in every dtype


def _leaf(a: Any) -> Any:
    return a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a


def _double(a: Any) -> Any:
    return a.double() if isinstance(a, Tensor) and a.is_floating_point() else a
