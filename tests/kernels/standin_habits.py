"""Habits of kernels that adapters guard against, and how a stand-in for an autograd function runs.

Gradients that are read as contiguous and written into, gradients that are scaled where they are kept, first derivatives
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Wary(torch.autograd.Function):
    """A function that reads its gradient as contiguous, and may change it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        assert gradient.is_contiguous(), "the kernel would read other numbers"
        made = gradient.clone()
        gradient.data.fill_(torch.nan)
        return made


def wary(x: Tensor) -> Tensor:
    made: Tensor = Wary.apply(x)
    return made


class ScaledInPlace(torch.autograd.Function):
    """A loss that computes its gradients in the forward pass and scales the saved ones in place."""

    @staticmethod
    def forward(ctx: Any, loss_of: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
        leaves = [None if t is None else t.detach().requires_grad_() for t in operands]
        with torch.enable_grad():
            loss = loss_of(*leaves)
        ctx.gradients = torch.autograd.grad(loss, [t for t in leaves if t is not None])
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        for kept in ctx.gradients:
            kept.mul_(gradient)
        places = len(ctx.needs_input_grad) - 1
        return None, *ctx.gradients, *(None,) * (places - len(ctx.gradients))


def forward(ctx: Any, body: Callable[[dict[str, Any]], Any], path: str, named: dict[str, Any]) -> Any:
    """The forward of an autograd function that is a stand-in: its results have first derivatives only."""
    leaves = dict(named)
    for name, value in named.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            leaves[name] = value.detach().requires_grad_(value.requires_grad)
    if path.endswith("LigerCrossEntropyFunction"):
        leaves["overwritten"] = named["_input"]
    ctx.inputs = [leaves[name] for name in named]
    with torch.enable_grad():
        results = body(leaves)
    ctx.results = results if isinstance(results, tuple) else (results,)
    detached = tuple(r.detach() if isinstance(r, Tensor) else r for r in ctx.results)
    return detached if isinstance(results, tuple) else detached[0]


def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    pairs = [
        (r, g) for r, g in zip(ctx.results, gradients, strict=True)
        if isinstance(r, Tensor) and r.requires_grad and g is not None
    ]  # fmt: skip
    wanted = [x for x in ctx.inputs if isinstance(x, Tensor) and x.requires_grad]
    found = iter(
        torch.autograd.grad(
            [r for r, _ in pairs], wanted, [g.detach() for _, g in pairs], retain_graph=True, allow_unused=True
        )
    )
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in ctx.inputs)
