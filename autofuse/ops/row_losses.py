"""Cross entropy of a linear layer's output after arithmetic on it (a soft cap, a temperature), in blocks of rows.

The arithmetic is any chain of functions of a tensor that treat each number alone. torch's own operators and their
gradients run on one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autofuse.kernels.policy import settings
from autofuse.kernels.row_blocks import GradientSums, Head, blocks_of, scale_gradient
from autofuse.torch_private import functional as F

_OfRow = Callable[[Tensor, Tensor], Tensor]  # logits in fp32 or better, and targets


class OfNumbers(Protocol):
    """A function that treats each number of a tensor alone."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """The function of a tensor of any shape."""


_Numbers = Sequence[OfNumbers]


def cross_entropy_after(
    numbers: _Numbers, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int,
    label_smoothing: float, reduction: str,
) -> Tensor:  # fmt: skip
    """The cross entropy of numbers(x @ weight.T + bias), in fp32 or better, with a block of logits in memory at a time.

    Shapes: x (N, D), weight (V, D), bias (V,), target (N,); the result is a scalar, or (N,) for the reduction "none".
    """
    of_row = partial(F.cross_entropy, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    given = numbers, target, of_row
    # In float16, gradients need the loss scale before they are rounded. The policy "memory" avoids saved gradients.
    if reduction != "none" and x.dtype is not torch.float16 and settings().policy != "memory":
        counted = (target != ignore_index).sum() if reduction == "mean" else None
        loss: Tensor = _Ahead.apply(x, weight, bias, counted, *given)  # type: ignore[no-untyped-call]
        return loss
    losses: Tensor = _Rows.apply(x, weight, bias, *given)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses
    return losses.sum() / (target != ignore_index).sum() if reduction == "mean" else losses.sum()


def weighed_rows(
    numbers: _Numbers, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, of_row: _OfRow,
    total: Tensor | None, summed: bool,
) -> Tensor:  # fmt: skip
    """of_row(numbers(x @ weight.T + bias), target) of each row, in fp32 or better: (N,), or their sum over `total`.

    target: (N,) or (N, V). total: a scalar by which the sum is divided, None for 1.
    """
    if summed and x.dtype is not torch.float16 and settings().policy != "memory":
        loss: Tensor = _Ahead.apply(x, weight, bias, total, numbers, target, of_row)  # type: ignore[no-untyped-call]
        return loss
    losses: Tensor = _Rows.apply(x, weight, bias, numbers, target, of_row)  # type: ignore[no-untyped-call]
    if not summed:
        return losses
    return losses.sum() if total is None else losses.sum() / total


def logsumexp_after(numbers: _Numbers, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch.logsumexp over the classes of numbers(x @ weight.T + bias), in fp32 or better; the result is (N,)."""
    made: Tensor = _Rows.apply(x, weight, bias, numbers, x.new_zeros(x.shape[0]), _logsumexp)  # type: ignore[no-untyped-call]
    return made


def _logsumexp(logits: Tensor, _: Tensor) -> Tensor:
    return torch.logsumexp(logits, -1)


class _Ahead(torch.autograd.Function):
    """The mean or the sum. Its gradients are computed in the forward pass, where a block's logits are available."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, counted: Tensor | None, numbers: _Numbers,
        target: Tensor, of_row: _OfRow,
    ) -> Tensor:  # fmt: skip
        counted = torch.ones((), device=x.device) if counted is None else counted
        counted = counted.to(_wide_dtype(x.dtype))
        share = (1.0 / counted).expand(x.shape[0])
        wanted = tuple(ctx.needs_input_grad[:3])
        losses, gradients = _losses_in_blocks(x, weight, bias, numbers, target, of_row, share, wanted)
        ctx.save_for_backward(*(g if w else None for g, w in zip(gradients, wanted, strict=True)))
        return losses.sum() / counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        made = (None if g is None else scale_gradient(g, gradients[0], torch.empty_like(g)) for g in ctx.saved_tensors)
        return *made, *(None,) * 4


class _Rows(torch.autograd.Function):
    """The loss of each row; its gradients are computed from the logits once more, in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, numbers: _Numbers, target: Tensor, of_row: _OfRow
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, target)
        ctx.rest = numbers, of_row
        return _losses_in_blocks(x, weight, bias, numbers, target, of_row, None, (False,) * 3)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, weight, bias, target = ctx.saved_tensors
        numbers, of_row = ctx.rest
        wanted = tuple(ctx.needs_input_grad[:3])
        _, made = _losses_in_blocks(x, weight, bias, numbers, target, of_row, gradients[0], wanted)
        return *(g if w else None for g, w in zip(made, wanted, strict=True)), *(None,) * 3


def _losses_in_blocks(
    x: Tensor, weight: Tensor, bias: Tensor | None, numbers: _Numbers, target: Tensor, of_row: _OfRow,
    share: Tensor | None, wanted: tuple[bool, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """The losses of the rows, and the gradients of their sum weighted by `share`; None: no gradients."""
    parts = blocks_of(x, weight, 4)
    losses = torch.zeros(x.shape[0], dtype=_wide_dtype(x.dtype), device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        head = Head(x, weight, bias)
        sums = GradientSums(x, head, (wanted[0], wanted[1], wanted[2]), len(parts) > 1)
        for block in parts:
            logits = head.logits(x[block]).requires_grad_(share is not None)
            with torch.set_grad_enabled(share is not None):
                changed = head.of_classes(logits)
                for step in numbers:
                    changed = step(changed)
                made = of_row(changed.to(losses.dtype), target[block])
            losses[block] = made.detach()
            if share is not None:
                (change,) = torch.autograd.grad(made, logits, share[block].to(made.dtype))
                sums.add(block, change, None)
                del change
            del logits, changed, made  # free this block before the next one is allocated
    return losses, sums.results() if share is not None else ()


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
