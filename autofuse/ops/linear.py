"""A linear layer whose products have sizes for which GPUs have fast kernels, such as GPT-2's head with 50257 classes.

cuBLAS reads 2 bytes at a time if the number of features is no multiple of 16 bytes, and is up to 10 times slower
(docs/gpu.md, "Matrix products of a head"). The provider "padded" pads the weight with rows of zeros for each product
and copies the results without the padding, in blocks of rows. The weight itself stays as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import row_blocks as blocks
from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import define, differentiate, formula_gradients
from autofuse.kernels.packages import TORCH
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import autocasts, first_refusal, one_dtype
from autofuse.kernels.row_shapes import rows
from autofuse.torch_private import functional as F
from autofuse.torch_private import unsafe_view

MANY_ROWS = 2048  # calls of more rows are of one kind: their products take time in proportion to the rows
_FAST = 16  # bytes; cuBLAS loads this many at a time from rows that are multiples of them


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias.

    Args:
        x: shape (..., in).
        weight: shape (out, in).
        bias: shape (out,), or None.

    Returns:
        A contiguous tensor of shape (..., out).
    """
    result: Tensor = _OP(x, weight, bias)
    return result


# The registered operator.


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, (..., out). In memory at a time: the result, a block of it, and the padded weight."""
    flat = rows(x)
    head = blocks.Head(flat, weight, bias, blocks.fast_padding(weight))
    result = flat.new_empty(flat.shape[0], head.classes)
    for block in blocks.blocks_of(flat, weight, 1):
        result[block] = head.of_classes(head.logits(flat[block]))
    shaped: Tensor = unsafe_view(result, (*x.shape[:-1], head.classes))  # autograd forbids writes into a view
    return shaped


def padded_linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; empty if not in `wanted`. The gradient of the padding is zero."""
    flat, grad_rows = rows(x), rows(grad)
    head = blocks.Head(flat, weight, bias, blocks.fast_padding(weight))
    parts = blocks.blocks_of(flat, weight, 1)
    of_x, of_weight, of_bias = wanted
    sums = blocks.GradientSums(flat, head, (of_x, of_weight, of_bias), len(parts) > 1)
    for block in parts:
        sums.add(block, _with_zeros(grad_rows[block], head.padding), None)
    x_gradient, *others = sums.results()
    return x_gradient.view(x.shape) if of_x else x_gradient, *others  # type: ignore[return-value]


def _with_zeros(x: Tensor, columns: int) -> Tensor:
    """x (rows, C) with columns of zeros after it. F.pad would write all of it twice."""
    if not columns:
        return x
    padded = x.new_empty(x.shape[0], x.shape[1] + columns)
    padded[:, : x.shape[1]] = x
    padded[:, x.shape[1] :].zero_()
    return padded


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _fake_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    of_x, of_weight, of_bias = wanted
    return blocks.empty_gradients(x, weight, bias, (of_x, of_weight, of_bias))


def _flops(x: Any, weight: Any, *others: Any, **_: Any) -> int:
    return int(2 * math.prod(x[:-1]) * math.prod(weight))


def _flops_backward(grad: Any, x: Any, weight: Any, bias: Any, wanted: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(x[:-1]) * math.prod(weight) * (wanted[0] + wanted[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    operands, wanted = ctx.saved_tensors, ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():  # the caller differentiates this backward pass, too
        return tuple(formula_gradients(F.linear, operands, (grad,), wanted))
    gradients = _backward(grad, *operands, list(wanted))
    return tuple(g if wants else None for g, wants in zip(gradients, wanted, strict=True))


_forward = define(padded_linear, _fake, _flops)
_backward = define(padded_linear_backward, _fake_backward, _flops_backward)
differentiate(_forward, _gradients, _save)


# The providers.


def _refusal(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    """The reason why padding does not support a call, or cannot make it faster."""
    if not x.ndim or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return "It needs x (..., in) and a weight (out, in)."
    if bias is not None and bias.shape != weight.shape[:1]:
        return "It needs a bias (out,)."
    entry = _operand_dtype(x).itemsize
    if weight.shape[0] * entry % _FAST == 0:
        return f"{weight.shape[0]} features are a multiple of {_FAST} bytes already."
    return first_refusal(
        "" if all(t is None or t.device == x.device for t in (weight, bias)) else "It needs operands on one device.",
        "" if autocasts(x) else one_dtype(x, weight, bias),
    )


def _operand_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the product is computed."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) else x.dtype


def _by_padding(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if autocasts(x):
        dtype = _operand_dtype(x)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    result: Tensor = _forward(x, weight, bias)
    return result


def _by_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def _sizes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[int, ...]:
    return (min(x.shape[:-1].numel(), MANY_ROWS).bit_length(), *weight.shape)


_OP = Operation(
    "linear",
    (
        Provider(
            "linear", "padded", TORCH, _by_padding, check=_refusal, devices=("cuda",),
            summary="torch's products with the features padded to a multiple of 128 bytes, in blocks of rows.",
            gradient="torch's products with padding; the gradient of the padding is zero and is dropped.",
        ),
        Provider("linear", "torch", TORCH, _by_torch, summary="torch linear.", gradient="torch's own.", default=True),
    ),
    sizes=_sizes,
)  # fmt: skip
