"""Compares a provider with the plain reference in float64: results, gradients, and what must stay unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.kernels.provider import Provider
from autofuse.ops import reference

EPS = torch.finfo(torch.float32).eps


class Call:
    """A function's results on its own copies of the operands, in another dtype, with the same strides."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, dtype: torch.dtype) -> None:
        self.args = [_copy(a, dtype) for a in args]
        self.kwargs = {name: _copy(a, dtype) for name, a in kwargs.items()}
        self.operands = [a for a in (*self.args, *self.kwargs.values()) if isinstance(a, Tensor)]
        self.leaves = [a for a in self.operands if a.requires_grad]
        self.before = [a.detach().clone() for a in self.operands]
        made = function(*self.args, **self.kwargs)
        self.results: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)

    def gradients(self, upstream: list[Tensor] | None = None, **options: Any) -> tuple[Tensor, ...]:
        """The gradients, by default of the sum of all results."""
        if upstream is not None:
            return torch.autograd.grad(self.results, self.leaves, upstream, retain_graph=True, **options)
        total = sum((r.sum() for r in self.results), torch.zeros((), dtype=self.results[0].dtype))
        return torch.autograd.grad(total, self.leaves, retain_graph=True, **options)

    def kept_its_operands(self) -> bool:
        return all(torch.equal(a.detach(), b) for a, b in zip(self.operands, self.before, strict=True))


def _copy(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    return copied.to(dtype).requires_grad_(value.requires_grad) if value.is_floating_point() else copied


def assert_agrees(provider: Provider, *args: Any, terms: int = 64, formula: Any = None, **kwargs: Any) -> None:
    """Results and gradients of a call in float32, the latter twice; operands and the given gradient as they were.

    `terms`: how many roundings, each of an ulp of the largest entry, may add up in an entry. `formula`: what it has to
    agree with, where there is no reference of that name.
    """
    assert provider.check(*args, **kwargs) == ""
    ours = Call(provider.run, args, kwargs, torch.float32)
    theirs = Call(formula or getattr(reference, provider.operation), args, kwargs, torch.float64)
    _assert_close(ours.results, theirs.results, terms)
    if ours.leaves:
        _assert_same_gradients(ours, theirs, terms)
    assert ours.kept_its_operands()
    with torch.no_grad():
        _assert_close(Call(provider.run, args, kwargs, torch.float32).results, theirs.results, terms)


def _assert_same_gradients(ours: Call, theirs: Call, terms: int) -> None:
    random = torch.Generator().manual_seed(1)
    upstream = [torch.randn(r.shape, generator=random) for r in ours.results]
    kept = [g.clone() for g in upstream]
    wanted = theirs.gradients([g.double() for g in upstream])
    for _ in range(2):  # what is kept for the backward pass is still there after it
        _assert_close(ours.gradients(upstream), wanted, terms)
    assert all(map(torch.equal, upstream, kept)), "the gradient that was given is changed"
    _assert_close(ours.gradients(), theirs.gradients(), terms)  # an upstream gradient that is one number, expanded


def assert_has_second_derivatives(provider: Provider, *args: Any, terms: int = 256, **kwargs: Any) -> None:
    """Compares the gradients of a function of the gradients with the reference's."""
    calls = [
        Call(function, args, kwargs, dtype)
        for function, dtype in ((provider.run, torch.float32), (getattr(reference, provider.operation), torch.float64))
    ]
    found = []
    for call in calls:
        upstream = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view(r.shape) for r in call.results]
        leaves = [*call.leaves, *(g.requires_grad_() for g in upstream)]
        gradients = call.gradients(upstream, create_graph=True)
        total = sum(((g * g).sum() for g in gradients), torch.zeros((), dtype=gradients[0].dtype))
        found.append(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
    _assert_close(found[0], found[1], terms)


def assert_refuses_second_derivatives(provider: Provider, *args: Any, **kwargs: Any) -> None:
    """Asserts an error instead of silent zeros."""
    call = Call(provider.run, args, kwargs, torch.float32)
    with pytest.raises(RuntimeError, match="no derivative of its gradient"):
        call.gradients(create_graph=True)


def _assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], terms: int) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        largest = max(1.0, float(other.detach().nan_to_num().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=terms * EPS * largest, equal_nan=True)
