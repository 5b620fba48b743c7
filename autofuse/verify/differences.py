"""Differences between two runs that need no comparison of numbers: structure, dtypes, shapes, integers, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.verify.runs import ModuleRun


def find_difference_in_kind(original: ModuleRun, rewritten: ModuleRun) -> tuple[str, str] | None:
    """Return the first result that differs in kind, and its difference; None if there is none."""
    for name, value in {**original.tensors, **original.others}.items():
        if name not in rewritten.tensors and name not in rewritten.others:
            return name, "is missing from what the rewritten module does"
        other = rewritten.tensors.get(name, rewritten.others.get(name))
        if difference := _value_difference(value, other):
            return name, difference
    for name in {**rewritten.tensors, **rewritten.others}:
        if name.startswith("result") and name not in original.tensors and name not in original.others:
            return name, "is returned by the rewritten module only"
    for name in sorted(original.with_gradient ^ rewritten.with_gradient):
        return name, "carries a gradient" if name in rewritten.with_gradient else "no longer carries a gradient"
    return None


def tensor_difference(original: Tensor, other: Tensor) -> str:
    """Return how two tensors differ apart from rounding: "has shape (1,) instead of (2,)"; "" if they do not."""
    for aspect in ("dtype", "shape", "device"):
        expected, actual = getattr(original, aspect), getattr(other, aspect)
        if expected != actual:
            return f"has {aspect} {_describe(actual)} instead of {_describe(expected)}"
    exact = not (original.is_floating_point() or original.is_complex())
    return "has other entries" if exact and not torch.equal(original, other) else ""


def _value_difference(value: Any, other: Any) -> str:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return tensor_difference(value, other)
    if type(value) is not type(other) or (isinstance(value, _COMPARABLE) and value != other):
        return f"is {_describe(other)} instead of {_describe(value)}"
    return ""


_COMPARABLE = (int, str, bytes, type, torch.dtype, torch.device, torch.Size, type(None))


def _describe(value: Any) -> str:
    if isinstance(value, torch.Size):
        return str(tuple(value))
    return "a tensor" if isinstance(value, Tensor) else getattr(value, "__name__", repr(value))


def are_equal_runs(one: ModuleRun, other: ModuleRun) -> bool:
    """Whether two runs gave equal results, gradients and side effects."""
    return (
        find_difference_in_kind(one, other) is None
        and all(are_equal_tensors(t, other.tensors[n]) for n, t in one.tensors.items())
        and all(are_equal_tensors(g, other.gradients.get(n)) for n, g in one.gradients.items())
    )


def are_equal_tensors(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    if a is None or b is None:
        return a is b
    equal = a.detach() == b.detach()
    return bool((equal | (a != a) & (b != b)).all())
