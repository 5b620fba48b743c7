"""Losses with kernels that take logits (rows, classes) and class indices (rows,)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.requirements import first_refusal, index_targets, must_be_none, no_autocast


def row_loss_refusal(logits: Tensor, target: Tensor, dim: int, weight: Tensor | None) -> str:
    """The reason why such kernels do not support a call of `cross_entropy`, as a sentence; "" if they do."""
    if target.is_floating_point():
        return "It takes class indices, not probabilities."
    expected = list(logits.shape)
    expected.pop(dim if logits.ndim > 1 else 0)
    if list(target.shape) != expected or target.device != logits.device:
        return "It needs one target for each row of logits, in the same layout."
    return first_refusal(index_targets(target), must_be_none(weight, "weights of classes"), no_autocast(logits))


def as_rows(logits: Tensor, target: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Logits (rows, classes) and contiguous targets (rows,). `dim` 1 also means the only dimension."""
    dim = dim if logits.ndim > 1 else 0
    return logits.movedim(dim, -1).reshape(-1, logits.shape[dim]), target.reshape(-1).contiguous()


def torch_ignore_index(ignore_index: int | None) -> int:
    """torch's `ignore_index`: -100 for None."""
    return -100 if ignore_index is None else ignore_index


def reduce_losses(losses: Tensor, rows: Tensor, target: Tensor, ignore_index: int | None, reduction: str) -> Tensor:
    """The loss from those of the rows, which are 0 where ignored, in the dtype of the logits as torch gives it.

    The mean over no rows is nan. Sums are in float32, because a float16 sum of 10,000 losses is infinite.
    """
    if reduction == "none":
        return losses.reshape(target.shape).to(rows.dtype)
    total = losses.float().sum()
    if reduction == "mean":
        total = total / (target != torch_ignore_index(ignore_index)).sum()
    return total.to(rows.dtype)


def nan_if_no_row_counts(loss: Tensor, target: Tensor, ignore_index: int | None) -> Tensor:
    """torch's mean, from a kernel whose mean over no rows is 0 instead of nan."""
    return torch.where((target != torch_ignore_index(ignore_index)).any(), loss, torch.nan)


def with_saved_gradients(loss_of: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
    """`loss_of(*operands)`, a scalar, for kernels that compute the gradients of the operands in the forward pass.

    Such kernels scale the saved gradients in place in the backward pass, which is wrong at a second backward pass. They
    may also write into their operands. Here the gradients of the unscaled loss are computed at once and saved.
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
        saved = iter(ctx.saved_tensors)
        return None, *((next(saved) * gradient if w else None) for w in ctx.wanted)
