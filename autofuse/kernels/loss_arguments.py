"""Losses by kernels that take logits (rows, classes) and class indices (rows,).

Knows how `autofuse.ops.cross_entropy` lays out its operands and what its reductions mean; must not know whose kernel
computes the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.requirements import first, indices, no_autocast, none_given


def row_wise(logits: Tensor, target: Tensor, dim: int, weight: Tensor | None) -> str:
    """Why such kernels do not take a call of `cross_entropy`, as a sentence; "" where they do."""
    if target.is_floating_point():
        return "It takes class indices, not probabilities."
    expected = list(logits.shape)
    expected.pop(dim if logits.ndim > 1 else 0)
    if list(target.shape) != expected or target.device != logits.device:
        return "It takes one target for each row of logits, laid out as these are."
    return first(indices(target), none_given(weight, "weights of classes"), no_autocast(logits))


def as_rows(logits: Tensor, target: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(rows, classes) and (rows,), the latter contiguous. `dim` 1 is the only one where there is no other."""
    dim = dim if logits.ndim > 1 else 0
    return logits.movedim(dim, -1).reshape(-1, logits.shape[dim]), target.reshape(-1).contiguous()


def ignored(ignore_index: int | None) -> int:
    return -100 if ignore_index is None else ignore_index


def reduced(losses: Tensor, rows: Tensor, target: Tensor, ignore_index: int | None, reduction: str) -> Tensor:
    """The loss from those of rows, which are 0 where they are ignored, in the dtype of logits as torch gives it.

    The mean over no rows is nan. Sums are in float32: a float16 sum of 10,000 losses is infinite.
    """
    if reduction == "none":
        return losses.reshape(target.shape).to(rows.dtype)
    total = losses.float().sum()
    if reduction == "mean":
        total = total / (target != ignored(ignore_index)).sum()
    return total.to(rows.dtype)


def nan_where_none_counts(loss: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """A mean as torch has it, from a kernel whose mean over no rows is 0."""
    return torch.where((target != ignored(ignore_index)).any(), loss, torch.nan)


def with_gradients_kept(loss_of: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
    """`loss_of(*operands)`, a number, for kernels that compute the gradients of operands in the forward pass.

    Such kernels scale in the backward pass, in place, what they keep, which is wrong the second time it is asked for;
    and they may write into their operands. Here the gradients of the unscaled loss are taken at once, and kept.
    """
    if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)):
        return loss_of(*operands)
    result: Tensor = _WithGradients.apply(loss_of, *operands)  # type: ignore[no-untyped-call]
    return result


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss_of: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
        ctx.wanted = ctx.needs_input_grad[1:]
        leaves = [
            None if t is None else t.detach().requires_grad_(w) for t, w in zip(operands, ctx.wanted, strict=True)
        ]
        with torch.enable_grad():
            loss = loss_of(*leaves)
        wanted = [leaf for leaf, w in zip(leaves, ctx.wanted, strict=True) if leaf is not None and w]
        ctx.save_for_backward(*torch.autograd.grad(loss, wanted))
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        return None, *((next(kept) * gradient if w else None) for w in ctx.wanted)
