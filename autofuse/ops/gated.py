"""Gated activations: activation(gate) * up, of two tensors or of the halves of one.

With silu, gelu or relu this is SwiGLU, GEGLU or ReGLU: Shazeer, arXiv:2002.05202. Our kernels save gate and up for the
backward pass and nothing else, and read and write each entry once. torch's code saves the activation too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Check, Provider
from autofuse.kernels.requirements import evenly_spaced_rows, first_refusal, same_shape_and_dtype
from autofuse.kernels.row_shapes import as_rows, reshape_like, rows
from autofuse.ops.activations import Activation, activation_refusal
from autofuse.ops.activations import activation as activated
from autofuse.torch_private import functional as F

_KERNELS = Kernels(triton="autofuse.kernels.triton.gated", compiled="autofuse.kernels.compiled.gated")


def gated_product(gate: Tensor, up: Tensor, *, activation: Activation = "silu") -> Tensor:
    """activation(gate) * up, elementwise.

    Args:
        gate: any shape.
        up: any shape that broadcasts against gate.
        activation: the name of an activation, or a function.

    Returns:
        A tensor of the shape to which gate and up broadcast.

    Raises:
        ValueError: if the activation is unknown.
    """
    result: Tensor = _PRODUCT(gate, up, activation=activation)
    return result


def gated_activation(x: Tensor, *, activation: Activation = "silu", gate_first: bool = True) -> Tensor:
    """activation(gate) * up, where gate and up are the halves of `x` along its last dimension.

    Args:
        x: shape (..., 2 * hidden).
        activation: the name of an activation, or a function.
        gate_first: whether the gate is the first half.

    Returns:
        A tensor of shape (..., hidden).

    Raises:
        ValueError: if the activation is unknown or the last dimension is odd.
    """
    result: Tensor = _HALVES(x, activation=activation, gate_first=gate_first)
    return result


def glu(x: Tensor) -> Tensor:
    """The first half of the last dimension times the sigmoid of the second half.

    Args:
        x: shape (..., 2 * hidden).

    Returns:
        A tensor of shape (..., hidden).

    Raises:
        RuntimeError: if the last dimension is odd.

    Source: Dauphin et al., arXiv:1612.08083.
    """
    return F.glu(x, dim=-1)


# torch's code.


def _product_by_torch(gate: Tensor, up: Tensor, *, activation: Activation = "silu") -> Tensor:
    return activated(gate, activation) * up


def _halves_by_torch(x: Tensor, *, activation: Activation = "silu", gate_first: bool = True) -> Tensor:
    if x.shape[-1] % 2:
        raise ValueError(
            f"gated_activation got a last dimension of {x.shape[-1]}, which does not divide into a gate and an up "
            "half. Concatenate both halves in the last dimension."
        )
    first_half, second_half = x.chunk(2, dim=-1)
    gate, up = (first_half, second_half) if gate_first else (second_half, first_half)
    return activated(gate, activation) * up


# Two tensors.


def gated(gate: Tensor, up: Tensor, activation: str, kernel: str) -> Tensor:
    """activation(gate) * up with the kernels of `kernel`."""
    if not gate.numel():
        return gate.new_empty(gate.shape)
    result: Tensor = _KERNELS[kernel].forward(as_rows(gate, kernel), as_rows(up, kernel), activation)
    return reshape_like(result, gate)


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, activation: str, kernel: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    if not gate.numel():
        return gate.new_empty(gate.shape), up.new_empty(up.shape)
    operands = as_rows(grad, kernel), as_rows(gate, kernel), as_rows(up, kernel)
    gate_gradient, up_gradient = _KERNELS[kernel].backward(*operands, activation)
    return reshape_like(gate_gradient, gate), reshape_like(up_gradient, up)


_GATED = define(gated, lambda gate, up, activation, kernel: gate.new_empty(gate.shape))
_GATED_BACKWARD = define(
    gated_backward,
    lambda grad, gate, up, activation, kernel: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
)


def _save_gated(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.activation, ctx.kernel = inputs
    ctx.save_for_backward(gate, up)


def _gated_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gate, up = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = lambda gate, up: _product_by_torch(gate, up, activation=ctx.activation)
        return *formula_gradients(formula, (gate, up), (grad,), ctx.needs_input_grad[:2]), None, None
    return *_GATED_BACKWARD(grad, gate, up, ctx.activation, ctx.kernel), None, None


differentiate(_GATED, _gated_gradients, _save_gated)


# The halves of one tensor.


def gated_halves(x: Tensor, activation: str, gate_first: bool, kernel: str) -> Tensor:
    """activation(gate) * up for the halves of x, with the kernels of `kernel`."""
    if not x.numel():
        return x.new_empty(_half_shape(x.shape))
    result: Tensor = _KERNELS[kernel].packed_forward(rows(x), activation, gate_first)
    return result.view(_half_shape(x.shape))


def gated_halves_backward(grad: Tensor, x: Tensor, activation: str, gate_first: bool, kernel: str) -> Tensor:
    """The gradient of x."""
    if not x.numel():
        return x.new_empty(x.shape)
    result: Tensor = _KERNELS[kernel].packed_backward(rows(grad), rows(x), activation, gate_first)
    return reshape_like(result, x)


_GATED_HALVES = define(gated_halves, lambda x, activation, gate_first, kernel: x.new_empty(_half_shape(x.shape)))
_GATED_HALVES_BACKWARD = define(
    gated_halves_backward, lambda grad, x, activation, gate_first, kernel: x.new_empty(x.shape)
)


def _save_halves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.activation, ctx.gate_first, ctx.kernel = inputs
    ctx.save_for_backward(x)


def _halves_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = lambda x: _halves_by_torch(x, activation=ctx.activation, gate_first=ctx.gate_first)
        return *formula_gradients(formula, (x,), (grad,), (True,)), None, None, None
    return _GATED_HALVES_BACKWARD(grad, x, ctx.activation, ctx.gate_first, ctx.kernel), None, None, None


differentiate(_GATED_HALVES, _halves_gradient, _save_halves)


def _half_shape(shape: torch.Size) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // 2)


# The providers.


def _product_refusal(gate: Tensor, up: Tensor, *, activation: Activation = "silu") -> str:
    return first_refusal(
        activation_refusal(activation),
        same_shape_and_dtype(gate, up, "gate and up"),
        evenly_spaced_rows(gate, "the gate"),
        evenly_spaced_rows(up, "up"),
    )


def _halves_refusal(x: Tensor, *, activation: Activation = "silu", gate_first: bool = True) -> str:
    return first_refusal(
        activation_refusal(activation),
        "" if x.shape[-1] % 2 == 0 else "It needs an even last dimension.",
        evenly_spaced_rows(x, "x"),
    )


def _product_by_kernel(kernel: str, gate: Tensor, up: Tensor, *, activation: str = "silu") -> Any:
    return _GATED(gate, up, activation, kernel)


def _halves_by_kernel(kernel: str, x: Tensor, *, activation: str = "silu", gate_first: bool = True) -> Any:
    return _GATED_HALVES(x, activation, gate_first, kernel)


def _providers(operation: str, by_kernel: Any, check: Check, by_torch: Any) -> tuple[Provider, ...]:
    return (
        Provider(
            operation, "triton", TRITON, partial(by_kernel, "triton"), check=check, devices=("cuda",), default=True,
            summary="One Triton kernel of our own, which reads and writes rows in place, without copies.",
            gradient="One kernel for both gradients; the activation is computed again and not saved.",
        ),
        Provider(
            operation, "compiled", COMPILER, partial(by_kernel, "compiled"), check=check, devices=("cpu",),
            default=True,
            summary="One loop that Inductor compiles for each dtype, and for each width if one tensor has both halves.",
            gradient="A second such loop; the activation is computed again and not saved.",
        ),
        Provider(
            operation, "torch", TORCH, by_torch, default=True, summary="torch activation, mul.",
            gradient="torch's own, kernel by kernel; the activation is saved.",
        ),
    )  # fmt: skip


# Choosing a provider and dispatching cost about 90 microseconds. With fewer entries a loop saves less than that.
_LEAST = 2**19
_ON_GPU = GpuThreshold(extra=24, saved=6)  # 40 microseconds against 16; torch reads and writes 14 tensors, we 8
_PRODUCT = Operation(
    "gated_product",
    _providers("gated_product", _product_by_kernel, _product_refusal, _product_by_torch),
    least=_LEAST,
    on_gpu=_ON_GPU,
)  # fmt: skip
_HALVES = Operation(
    "gated_activation",
    _providers("gated_activation", _halves_by_kernel, _halves_refusal, _halves_by_torch),
    least=_LEAST,
    on_gpu=_ON_GPU,
)  # fmt: skip
