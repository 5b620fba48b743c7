"""Steps of a copy of a model, with and without lazy logits, and how their results and gradients are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.tensor import LazyLogits
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import copied_object
from autofuse.torch_private import pytree

_GRADIENT = "gradient of "


def gradients_of_step(model: nn.Module, call: ForwardArguments) -> dict[str, Tensor]:
    """The results, and all gradients of the sum of one number for each result."""
    model.zero_grad()
    result = run_step(model, call)
    tensors = [t for t in pytree.tree_leaves(_contents(result)) if isinstance(t, Tensor) and t.is_floating_point()]
    total = torch.zeros((), dtype=torch.float64)
    for t in tensors:
        if t.requires_grad:
            total = total + _scalar(t).cpu()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    found = {f"{_GRADIENT}{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        found |= {f"result[{i}]": t.detach() + 0 for i, t in enumerate(tensors)}
    return found


def run_step(model: nn.Module, call: ForwardArguments) -> Any:
    dtype = dtype_of(model)
    args, kwargs = pytree.tree_map(lambda x: _fresh_input(x, dtype), call)
    torch.manual_seed(0)
    with torch.enable_grad(), lazy_at_any_size():
        return model(*args, **kwargs)


def dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _fresh_input(x: Any, dtype: torch.dtype) -> Any:
    if not isinstance(x, Tensor):
        return copied_object(x)
    to = dtype if x.is_floating_point() else x.dtype
    return x.detach().to(to, copy=True).requires_grad_(x.requires_grad)


def _scalar(t: Tensor) -> Tensor:
    """A number that depends on each entry. For logits of shape (..., V) it is a loss with random targets."""
    if t.ndim < 2:
        return t.double().sum()
    drawn = torch.Generator().manual_seed(t.numel())
    # The targets are equal in both runs, because the generator has a fixed seed.
    targets = torch.randint(t.shape[-1], (t.shape[:-1].numel(),), generator=drawn)
    return F.cross_entropy(t.reshape(-1, t.shape[-1]), targets.to(t.device)).double()


def relative_errors(plain: dict[str, Tensor], lazy: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each tensor, as a share of its largest entry.

    A gradient that is zero apart from rounding, as that of a key's bias, has no digits to compare. So the share is of
    at least half of the digits of the largest gradient. All gradients come from the loss, so a wrong loss shows in the
    larger ones.
    """
    largest = max((_largest(t) for name, t in plain.items() if name.startswith(_GRADIENT)), default=0.0)
    return {
        name: _relative_error(t, lazy[name], largest if name.startswith(_GRADIENT) else 0.0)
        for name, t in plain.items()
    }  # fmt: skip


def _relative_error(plain: Tensor, lazy: Tensor, largest_gradient: float) -> float:
    if plain.shape != lazy.shape or plain.dtype is not lazy.dtype:
        return float("inf")
    if not plain.numel():
        return 0.0
    digits: float = torch.finfo(plain.dtype).eps ** 0.5
    error = _largest(plain - lazy) / max(_largest(plain), digits * largest_gradient, 1e-30)
    return float("inf") if math.isnan(error) else error


def _largest(t: Tensor) -> float:
    return float(t.abs().max().item()) if t.numel() else 0.0


def lazy_logits_in(result: Any) -> list[LazyLogits]:
    return [x for x in pytree.tree_leaves(_contents(result)) if isinstance(x, LazyLogits)]


def _contents(result: Any) -> Any:
    """The contents of a result as a list. An object such as a dataclass gives its attributes."""
    return list(_parts(result, 4))


def _parts(x: Any, depth: int) -> Iterator[Any]:
    if isinstance(x, Tensor) or not depth:
        yield x
    elif isinstance(x, dict):
        for value in x.values():
            yield from _parts(value, depth - 1)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from _parts(value, depth - 1)
    elif hasattr(x, "__dict__"):
        yield from _parts(vars(x), depth - 1)
