"""Cross entropy: of logits in torch's kernels, and of a linear layer's output without ever forming all of the logits.

Knows that the logits of a language model are the largest tensor of its step, and need not be: their loss and their
gradient are computed for a block of rows at a time. Must not know which module owns the weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_REDUCTIONS = ("mean", "sum", "none")
# Logits in one block. On CPU they should stay in the cache: 64 to 512 rows of 16000 were tried, 128 was best.
_BLOCK = {"cpu": 2**21}
_BLOCK_ELSEWHERE = 2**25
_LEAST_ROWS = {"cpu": 64}
_LEAST_ROWS_ELSEWHERE = 256


def nll(
    log_probs: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The negative log likelihood of `target`, its arguments and its result those of `cross_entropy`.

    It is that function: log-softmax of log-probabilities changes nothing.
    """
    return cross_entropy(
        log_probs, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log softmax(logits)[target], as torch defines it, with the classes in any dimension.

    Shapes: logits has its C classes in dimension `dim`; 1 means the only one where there is no other. target holds
    class indices, one for each row of logits, in the order in which those lie; weight is (C,). The result is a scalar,
    or of target's shape where `reduction` is "none". Rows whose target is `ignore_index` (None: -100) do not count.
    Source of label smoothing: Szegedy et al., arXiv:1512.00567. Raises ValueError for another `reduction`.
    """
    _check_reduction(reduction)
    rows, flat = logits, target
    if dim != 1 and logits.ndim != 1 - dim:
        rows, flat = logits.movedim(dim, -1).reshape(-1, logits.shape[dim]), target.reshape(-1)
    loss = F.cross_entropy(
        rows, flat, weight, ignore_index=_ignored(ignore_index), reduction=reduction, label_smoothing=label_smoothing
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


def log_likelihood(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """log softmax(logits)[target]: cross_entropy with the other sign."""
    return -cross_entropy(
        logits, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
) -> Tensor:  # fmt: skip
    """cross_entropy(x @ weight.T + bias, target), with the logits of a block of rows in memory at a time.

    Shapes: x (..., D), weight (C, D), bias (C,); target holds class indices, one for each row of x, in the order in
    which those lie. The result is a scalar, or of target's shape where `reduction` is "none". Dtypes: logits are
    computed in that of x, under autocast in autocast's; softmax and sums in fp32 or better. The result has the dtype
    that `F.cross_entropy(F.linear(x, weight, bias), target)` gives, or fp32 with `in_float32`: for code that casts its
    logits to float. Rows whose target is `ignore_index` (None: -100) do not count.

    The backward pass computes the logits once more: a third more arithmetic, for (rows x C) less memory. It has no
    second derivative, and says so. Raises ValueError for another `reduction`, TypeError for a target of probabilities.
    """
    _check_reduction(reduction)
    if target.is_floating_point():
        raise TypeError("linear_cross_entropy takes class indices; it was given a target of probabilities.")
    x, weight, bias, result = _lowered(x, weight, bias)
    rows, flat = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    if rows.shape[0] != flat.shape[0]:
        raise ValueError(f"linear_cross_entropy was given {flat.shape[0]} targets for {rows.shape[0]} rows.")
    loss: Tensor
    losses, _ = _losses(rows, weight, bias, flat, _ignored(ignore_index), label_smoothing)
    if reduction == "none":
        loss = losses.reshape(target.shape)
    elif reduction == "sum":
        loss = losses.sum()
    else:
        loss = losses.sum() / (flat != _ignored(ignore_index)).sum()
    return loss.float() if in_float32 and result is not torch.float64 else loss.to(result)


def rows(logits: Tensor, in_float32: bool = False) -> Tensor:
    """Logits (..., C) as (rows, C), in fp32 if `in_float32`. In a rule's `before` it stands for every arrangement."""
    flat = logits.reshape(-1, logits.shape[-1])
    return flat.float() if in_float32 else flat


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f'A loss was asked for the reduction {reduction!r}. Use "mean", "sum" or "none".')


def _ignored(ignore_index: int | None) -> int:
    return -100 if ignore_index is None else ignore_index


def _lowered(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, torch.dtype]:
    """The operands as F.linear would take them, and the dtype of the loss: autocast computes losses in fp32."""
    device = x.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if not autocast or x.dtype is torch.float64:
        return x, weight, bias, x.dtype
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype), torch.float32


# The blocks.


def _block_rows(classes: int, device: str) -> int:
    block, least = _BLOCK.get(device, _BLOCK_ELSEWHERE), _LEAST_ROWS.get(device, _LEAST_ROWS_ELSEWHERE)
    return max(block // max(classes, 1), least)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias).to(_wide(x.dtype))


@torch.library.custom_op("autofuse::linear_cross_entropy", mutates_args=())
def _losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row, 0 where it is ignored, and the logarithm of the sum of the exponentials of its logits."""
    losses, normalizers = _fake_losses(x, weight, bias, target, ignore_index, label_smoothing)
    step = _block_rows(weight.shape[0], x.device.type)
    for start in range(0, x.shape[0], step):
        block = slice(start, start + step)
        logits, counted = _logits(x[block], weight, bias), target[block] != ignore_index
        normalizers[block] = normalizer = torch.logsumexp(logits, -1)
        wanted = logits.gather(-1, target[block].where(counted, 0).unsqueeze(-1)).squeeze(-1)
        if label_smoothing:
            wanted = torch.lerp(wanted, logits.mean(-1), label_smoothing)
        losses[block] = (normalizer - wanted).where(counted, 0.0)
    return losses, normalizers


@_losses.register_fake
def _fake_losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    made = x.new_empty(x.shape[0], dtype=_wide(x.dtype))
    return made, torch.empty_like(made)


@torch.library.custom_op("autofuse::linear_cross_entropy_backward", mutates_args=())
def _gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and bias; empty where they are not wanted. `gradient` is that of each row's loss."""
    made = _fake_gradients(
        gradient, x, weight, bias, target, normalizers, ignore_index, label_smoothing, of_x, of_weight
    )
    to_x, to_weight, to_bias = made[0], *(torch.zeros_like(t, dtype=_wide(x.dtype)) for t in made[1:])
    step = _block_rows(weight.shape[0], x.device.type)
    for start in range(0, x.shape[0], step):
        block = slice(start, start + step)
        counted = target[block] != ignore_index
        share = gradient[block].where(counted, 0.0).unsqueeze(-1)
        change = _logits(x[block], weight, bias).sub_(normalizers[block].unsqueeze(-1)).exp_()
        if label_smoothing:
            change.sub_(label_smoothing / weight.shape[0])
        wanted = target[block].where(counted, 0).unsqueeze(-1)
        change.scatter_add_(-1, wanted, torch.full_like(share, label_smoothing - 1.0))
        if to_bias.numel():
            to_bias += (share.T @ change).squeeze(0)
        narrow = change.to(x.dtype)  # a row's share is put in where rows are short
        if of_x:
            to_x[block] = (narrow @ weight) * share
        if of_weight:
            _accumulate(to_weight, narrow, (x[block] * share).to(x.dtype))
    return to_x, to_weight.to(weight.dtype), to_bias.to(x.dtype)


def _accumulate(total: Tensor, change: Tensor, x: Tensor) -> None:
    """total += change.T @ x, the sum over blocks in fp32 or better."""
    if total.dtype is x.dtype:
        total.addmm_(change.T, x)
    else:
        total += change.T @ x


@_gradients.register_fake
def _fake_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        x.new_empty(x.shape if of_x else (0, 0)),
        weight.new_empty(weight.shape if of_weight else (0, 0)),
        x.new_empty((0,) if bias is None else bias.shape),
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, target, ctx.ignore_index, ctx.label_smoothing = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, target, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, target, normalizers = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
    to_x, to_weight, to_bias = _gradients(
        gradient, x, weight, bias, target, normalizers, ctx.ignore_index, ctx.label_smoothing, of_x, of_weight
    )
    return to_x if of_x else None, to_weight if of_weight else None, to_bias if of_bias else None, None, None, None


_losses.register_autograd(_backward, setup_context=_keep_for_backward)
