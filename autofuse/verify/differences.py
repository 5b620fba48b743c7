"""What can differ between two runs before any number is compared: structure, dtypes, shapes, whole numbers, gradients.

Knows runs and tensors; must not know how much numbers may differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.verify.runs import ModuleRun


def difference_in_kind(original: ModuleRun, rewritten: ModuleRun) -> tuple[str, str] | None:
    """What differs between two runs before any number is compared: (culprit, difference), or None."""
    for name, value in {**original.tensors, **original.others}.items():
        if name not in rewritten.tensors and name not in rewritten.others:
            return name, "is missing from what the rewritten module does"
        other = rewritten.tensors.get(name, rewritten.others.get(name))
        if what := _difference_of(value, other):
            return name, what
    for name in {**rewritten.tensors, **rewritten.others}:
        if name.startswith("result") and name not in original.tensors and name not in original.others:
            return name, "is returned by the rewritten module only"
    for name in sorted(original.with_gradient ^ rewritten.with_gradient):
        return name, "carries a gradient" if name in rewritten.with_gradient else "no longer carries a gradient"
    return None


def difference_of_tensors(original: Tensor, other: Tensor) -> str:
    """What differs between two tensors but rounding, to follow a name: "has shape (1,) instead of (2,)"; or ""."""
    for aspect in ("dtype", "shape", "device"):
        was, is_ = getattr(original, aspect), getattr(other, aspect)
        if was != is_:
            return f"has {aspect} {_plain(is_)} instead of {_plain(was)}"
    exact = not (original.is_floating_point() or original.is_complex())
    return "has other entries" if exact and not torch.equal(original, other) else ""


def _difference_of(value: Any, other: Any) -> str:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return difference_of_tensors(value, other)
    if type(value) is not type(other) or (isinstance(value, _COMPARABLE) and value != other):
        return f"is {_plain(other)} instead of {_plain(value)}"
    return ""


_COMPARABLE = (int, str, bytes, type, torch.dtype, torch.device, torch.Size, type(None))


def _plain(value: Any) -> str:
    if isinstance(value, torch.Size):
        return str(tuple(value))
    return "a tensor" if isinstance(value, Tensor) else getattr(value, "__name__", repr(value))


def equal(one: ModuleRun, other: ModuleRun) -> bool:
    """Whether two runs left the same behind, bit by bit."""
    return (
        difference_in_kind(one, other) is None
        and all(same_bits(t, other.tensors[n]) for n, t in one.tensors.items())
        and all(same_bits(g, other.gradients.get(n)) for n, g in one.gradients.items())
    )


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are equal, NaN included."""
    if a is None or b is None:
        return a is b
    equal = a.detach() == b.detach()
    return bool((equal | (a != a) & (b != b)).all())
