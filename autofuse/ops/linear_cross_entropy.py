"""Cross entropy of a linear layer's output, without forming all logits at once.

The logits of a language model are the largest tensor of a training step. Here loss and gradient are computed for a
block of rows at a time (autofuse/kernels/row_blocks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import row_blocks as blocks
from autofuse.kernels.class_targets import out_of_range
from autofuse.kernels.operation import Operation, is_plain
from autofuse.kernels.operators import define, differentiate
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.policy import settings
from autofuse.kernels.provider import Provider
from autofuse.ops.class_lookups import NEVER, as_torch_target, loss_by_lookup
from autofuse.ops.cross_entropy import (
    capped_and_scaled,
    check_reduction,
    cross_entropy,
    torch_ignore_index,
    wide_dtype,
)
from autofuse.ops.row_losses import cross_entropy_after
from autofuse.torch_private import FakeTensor, keeps_graph
from autofuse.torch_private import functional as F
from autofuse.torch_private.autocast import is_autocast_on

_LEAST = 2**16  # logits; torch's functions form fewer at once


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
    lookup: str | None = None,
    count: int | None = None, of_probabilities: bool = False, scale: float = 1.0, soft_cap: float | None = None,
) -> Tensor:  # fmt: skip
    """cross_entropy(x @ weight.T + bias, target), with the logits of one block of rows in memory at a time.

    A scalar loss computes its gradients in the forward pass, where the logits of a block are available, and saves those
    of x and of the weight. The backward pass scales them. In three cases the logits are computed again in the backward
    pass instead, which is a third more arithmetic and saves nothing: for `reduction="none"`, in fp16 (whose gradients
    need the loss scale before they are rounded), and under the policy "memory". A second derivative raises an error.

    Args:
        x: shape (..., D).
        weight: shape (C, D).
        target: class indices, one for each row of x, in the order of the rows.
        bias: shape (C,), or None.
        ignore_index: rows with this target do not count; None means -100.
        label_smoothing: as in `cross_entropy`.
        reduction: "mean", "sum" or "none".
        in_float32: for code that casts its logits to float: the result is in fp32.
        lookup: as in `cross_entropy`; every target counts then.
        count: as in `cross_entropy`.
        of_probabilities: as in `cross_entropy`; all logits are formed then.
        scale: a number that multiplies the logits, 1 / temperature; after the cap if there is one.
        soft_cap: the logits become soft_cap * tanh(logits / soft_cap), as in Gemma 2 (arXiv:2408.00118); None for no
            cap.

    Returns:
        A scalar, or a tensor of target's shape if `reduction` is "none". Its dtype is that of
        `F.cross_entropy(F.linear(x, weight, bias), target)`, or fp32 with `in_float32`. Logits are computed in x's
        dtype, under autocast in autocast's; softmax and sums in fp32 or fp64.

    Raises:
        ValueError: if `reduction` is unknown, or the numbers of targets and rows differ.
        TypeError: if the target holds probabilities.
        IndexError: on a CPU, if a target is out of range.
    """
    check_reduction(reduction)
    if of_probabilities:  # only all logits show whether a probability underflows
        logits = capped_and_scaled(F.linear(x, weight, bias), scale, soft_cap)
        return cross_entropy(
            logits.to(wide_dtype(logits.dtype)) if in_float32 else logits, target, dim=-1, ignore_index=ignore_index,
            reduction=reduction, label_smoothing=label_smoothing, lookup=lookup, count=count, of_probabilities=True,
        )  # fmt: skip
    if lookup is not None:
        return _loss_by_lookup(
            x, weight, target, bias, lookup, count, label_smoothing, reduction, in_float32, scale, soft_cap
        )
    if target.is_floating_point():
        raise TypeError("linear_cross_entropy takes class indices, but the target holds probabilities.")
    if x.shape[:-1].numel() != target.numel():
        raise ValueError(f"linear_cross_entropy got {target.numel()} targets for {x.shape[:-1].numel()} rows.")
    options: dict[str, Any] = {
        "bias": bias, "ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction,
        "in_float32": in_float32,
    }  # fmt: skip
    if scale != 1.0 or soft_cap is not None:
        return _loss_after_arithmetic(x, weight, target, scale=scale, soft_cap=soft_cap, **options)
    run = _by_torch if torch.compiler.is_compiling() else _OP
    loss: Tensor = run(x, weight, target, **options)
    return loss


def _loss_after_arithmetic(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None, ignore_index: int | None,
    label_smoothing: float, reduction: str, in_float32: bool, scale: float, soft_cap: float | None,
) -> Tensor:  # fmt: skip
    """The loss with arithmetic on the logits. No package has it, so torch's functions run on blocks of rows."""
    opaque = is_plain(*(None if type(t) is FakeTensor else t for t in (x, weight, target, bias)))
    if not opaque or torch.compiler.is_compiling() or target.dtype is not torch.int64 or _is_small(x, weight):
        return _loss_of_all_logits(
            x, weight, target, bias=bias, ignore_index=ignore_index, label_smoothing=label_smoothing,
            reduction=reduction, in_float32=in_float32, scale=scale, soft_cap=soft_cap,
        )  # fmt: skip
    result = torch.float32 if in_float32 and x.dtype is not torch.float64 else x.dtype
    if is_autocast_on(x.device.type) and x.dtype is not torch.float64:
        lower, result = torch.get_autocast_dtype(x.device.type), torch.float32
        x, weight, bias = x.to(lower), weight.to(lower), None if bias is None else bias.to(lower)
    loss = cross_entropy_after(
        [partial(capped_and_scaled, scale=scale, soft_cap=soft_cap)], x.reshape(-1, x.shape[-1]), weight, bias,
        target.reshape(-1), torch_ignore_index(ignore_index), label_smoothing, reduction,
    )  # fmt: skip
    return (loss.reshape(target.shape) if reduction == "none" else loss).to(result)


def _loss_by_lookup(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, lookup: str, count: int | None,
    label_smoothing: float, reduction: str, in_float32: bool, scale: float, soft_cap: float | None,
) -> Tensor:  # fmt: skip
    """The loss if every target counts. Targets that torch's losses do not accept are looked up in all logits."""
    classes = weight.shape[0]
    class_indices = as_torch_target(target, x.shape[:-1].numel(), classes, lookup, count)
    if class_indices is None or out_of_range(class_indices, classes, NEVER) is not None:
        logits = capped_and_scaled(F.linear(x, weight, bias), scale, soft_cap)
        logits = logits.to(wide_dtype(logits.dtype)) if in_float32 else logits
        return loss_by_lookup(logits, target, -1, lookup, count, reduction, label_smoothing)
    return linear_cross_entropy(
        x, weight, class_indices, bias=bias, ignore_index=NEVER, label_smoothing=label_smoothing, reduction=reduction,
        in_float32=in_float32, scale=scale, soft_cap=soft_cap,
    )  # fmt: skip


def _loss_of_all_logits(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False, scale: float = 1.0,
    soft_cap: float | None = None,
) -> Tensor:  # fmt: skip
    """The loss with all logits in memory."""
    logits = capped_and_scaled(F.linear(x, weight, bias), scale, soft_cap).reshape(-1, weight.shape[0])
    loss = F.cross_entropy(
        logits.float() if in_float32 and logits.dtype is not torch.float64 else logits, target.reshape(-1),
        ignore_index=torch_ignore_index(ignore_index), reduction=reduction, label_smoothing=label_smoothing,
    )  # fmt: skip
    if reduction == "none":
        loss = loss.reshape(target.shape)
    return loss


def _by_torch(x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, **options: Any) -> Tensor:
    """In blocks, except if the logits are few, or functorch, a subclass or forward mode must see each operation."""
    kernel = "" if torch.compiler.is_compiling() else "torch"
    opaque = is_plain(*(None if type(t) is FakeTensor else t for t in (x, weight, target, bias)))
    if not opaque or target.dtype is not torch.int64 or _is_small(x, weight):
        return _loss_of_all_logits(x, weight, target, bias=bias, **options)
    loss: Tensor = _in_blocks(kernel)(x, weight, target, bias=bias, **options)
    return loss


def _is_small(x: Tensor, weight: Tensor) -> bool:
    return bool(x.shape[:-1].numel() * weight.shape[0] < _LEAST)


def _in_blocks(kernel: str) -> Any:
    """A provider's function that computes the loss in blocks with the kernels of `kernel`."""

    def run(
        x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
        label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
    ) -> Tensor:  # fmt: skip
        result = torch.float32 if in_float32 and x.dtype is not torch.float64 else x.dtype
        if is_autocast_on(x.device.type) and x.dtype is not torch.float64:
            lower, result = torch.get_autocast_dtype(x.device.type), torch.float32
            x, weight, bias = x.to(lower), weight.to(lower), None if bias is None else bias.to(lower)
        operands = (
            x.reshape(-1, x.shape[-1]),
            weight,
            bias,
            target.reshape(-1),
            torch_ignore_index(ignore_index),
            label_smoothing,
        )
        if reduction == "none":
            of_rows: Tensor = _losses(*operands, kernel)[0]
            return of_rows.reshape(target.shape).to(result)
        wanted = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, weight, bias)]
        if any(wanted) and x.dtype is not torch.float16 and settings().policy != "memory":
            loss: Tensor = _ahead(*operands, reduction == "mean", *wanted, kernel)[0]
            return loss.to(result)
        loss = _losses(*operands, kernel)[0].sum()
        return (loss / (operands[3] != operands[4]).sum() if reduction == "mean" else loss).to(result)

    return run


# The loss without gradients. The backward pass computes the logits again.


def _linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each row (0 if it is ignored) and the log-sum-exp of its logits."""
    return blocks.losses(x, weight, bias, target, ignore_index, label_smoothing, kernel)


def _fake_losses(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    gradients = x.new_empty(x.shape[0], dtype=wide_dtype(x.dtype))
    return gradients, torch.empty_like(gradients)


def _linear_cross_entropy_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, of_x: bool, of_weight: bool, of_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and bias from those of each row's loss; empty if not needed."""
    wanted = of_x, of_weight, of_bias
    return blocks.gradients(
        gradient, x, weight, bias, target, normalizers, ignore_index, label_smoothing, wanted, kernel
    )


def _fake_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, normalizers: Tensor,
    ignore_index: int, label_smoothing: float, of_x: bool, of_weight: bool, of_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return blocks.empty_gradients(x, weight, bias, (of_x, of_weight, of_bias))


def _save_operands(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, target, *ctx.rest = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, target, output[1])


def _recompute_gradients(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:3]
    if gradient is None:
        return (None,) * 7
    gradients = _gradients(gradient, *ctx.saved_tensors, *ctx.rest[:2], *wanted, ctx.rest[2])
    return *(g if w else None for g, w in zip(gradients, wanted, strict=True)), None, None, None, None


# The loss together with its gradients. The backward pass scales them.


def _linear_cross_entropy_ahead(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    mean: bool, of_x: bool, of_weight: bool, of_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mean or sum of the losses, and the gradients of x, weight and bias; empty if not needed."""
    wanted = of_x, of_weight, of_bias
    return blocks.loss_and_gradients(x, weight, bias, target, ignore_index, label_smoothing, mean, wanted, kernel)


def _fake_ahead(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, label_smoothing: float,
    mean: bool, of_x: bool, of_weight: bool, of_bias: bool, kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return x.new_empty((), dtype=wide_dtype(x.dtype)), *blocks.empty_gradients(
        x, weight, bias, (of_x, of_weight, of_bias)
    )


def _linear_cross_entropy_scaled(gradient: Tensor, ahead: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """gradient * ahead, in the dtype of `ahead`. `gradient` is that of the loss, a scalar.

    `operands` are the tensors from which the loss was computed. They connect the graph of a second derivative to them.
    """
    return blocks.scale_gradient(ahead, gradient, torch.empty_like(ahead))


def _fake_scaled(gradient: Tensor, ahead: Tensor, operands: Sequence[Tensor]) -> Tensor:
    return torch.empty_like(ahead)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:], *inputs[:3])


def _scaled_gradients(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:3]
    if gradient is None:
        return (None,) * 11
    saved = ctx.saved_tensors
    gradients: list[Tensor | None] = []
    for ahead, use in zip(saved[:3], wanted, strict=True):
        if not use:
            gradients.append(None)
        elif torch.is_grad_enabled():
            gradients.append(_scaled(gradient, ahead, [t for t in saved[3:] if t is not None]))
        else:
            gradients.append(
                blocks.scale_gradient(ahead, gradient, ahead) if _is_used_up(ahead) else _scaled(gradient, ahead, [])
            )
    return *gradients, *(None,) * 8


def _is_used_up(ahead: Tensor) -> bool:
    """Whether a saved gradient cannot be requested again: the graph is freed and nothing traces the backward pass."""
    if type(ahead) is not Tensor or torch.compiler.is_compiling() or not is_plain():
        return False
    return not keeps_graph()


# A second derivative.


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise RuntimeError(
        "ops.linear_cross_entropy has no second derivative, because that needs all logits at once. "
        "Compute the loss as ops.cross_entropy(F.linear(x, weight, bias), target), or leave out AF502."
    )


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


# Floating point operations for torch.utils.flop_counter: two for each multiply-add of a matrix product.


def _one_product(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * int(x[0]) * int(x[1]) * int(weight[0])


def _products_ahead(x: Any, weight: Any, *rest: Any, **__: Any) -> int:
    of_x, of_weight = rest[5:7]
    return _one_product(x, weight) * (1 + int(of_x) + int(of_weight))


def _products_backward(gradient: Any, *rest: Any, **__: Any) -> int:
    return _products_ahead(*rest)


_losses = define(_linear_cross_entropy, _fake_losses, _one_product)
_gradients = define(_linear_cross_entropy_backward, _fake_gradients, _products_backward)
_ahead = define(_linear_cross_entropy_ahead, _fake_ahead, _products_ahead)
_scaled = define(_linear_cross_entropy_scaled, _fake_scaled)
differentiate(_losses, _recompute_gradients, _save_operands)
differentiate(_ahead, _scaled_gradients, _save_gradients)
differentiate(_gradients, _no_second_derivative, _save_nothing)
differentiate(_scaled, _no_second_derivative, _save_nothing)


# The providers.


def _refusal(x: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int | None = None, **_: Any) -> str:
    if target.dtype is not torch.int64:
        return f"Targets are {target.dtype}, and it takes class indices in torch.int64."
    if out_of_range(target, weight.shape[0], torch_ignore_index(ignore_index)) is not None:
        return "A target is out of range."
    return f"Below {_LEAST} logits, forming all of them at once is as fast." if _is_small(x, weight) else ""


def _sizes(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> tuple[int, ...]:
    """The key of a measurement: rows, rounded up to a power of two, classes and width."""
    return x.shape[:-1].numel().bit_length(), weight.shape[0], x.shape[-1]


_AHEAD = "Our own: computed in the forward pass and scaled; in fp16 and without reduction, from logits computed again."
_OP = Operation(
    "linear_cross_entropy",
    (
        Provider(
            "linear_cross_entropy", "triton", TRITON, _in_blocks("triton"),
            "Blocks of rows: torch's matrix products, our softmax.", _AHEAD, _refusal, ("cuda",), default=True,
        ),
        Provider(
            "linear_cross_entropy", "compiled", COMPILER, _in_blocks("compiled"),
            "Blocks of rows: torch's matrix products, and a compiled loop for the softmax.", _AHEAD, _refusal, ("cpu",),
            default=True,
        ),
        Provider(
            "linear_cross_entropy", "torch", TORCH, _by_torch, "Blocks of rows, with torch's functions.", _AHEAD,
            default=True,
        ),
    ),
    least=0,
    sizes=_sizes,
)  # fmt: skip
