"""Activations by name, of x or of x + bias, elementwise: torch's code, and one operator for our kernels.

For the backward pass our kernels save x and the bias, neither their sum nor intermediate values. They sum the gradient
of the bias in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.row_shapes import as_rows, reshape_like

_BY_TORCH: dict[str, Callable[..., Tensor]] = {}
BY_TORCH: Mapping[str, Callable[..., Tensor]] = MappingProxyType(_BY_TORCH)
_KERNELS = Kernels(triton="autofuse.kernels.triton.activations", compiled="autofuse.kernels.compiled.activations")


def register_torch_function(name: str, function: Callable[..., Tensor]) -> None:
    """Registers torch's function for the activation `name`."""
    _BY_TORCH[name] = function


def run_biased(kernel: str, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias) with the kernels of `kernel`.

    Args:
        kernel: "triton" or "compiled".
        x: shape (..., hidden).
        bias: shape (hidden,), or None.
        activation: the name of the activation.

    Returns:
        A tensor of x's shape, in the dtype to which x and bias promote.
    """
    result: Tensor = _biased(x, bias, activation, kernel)
    return result


def biased(x: Tensor, bias: Tensor | None, activation: str, kernel: str) -> Tensor:
    """activation(x + bias) with the kernels of `kernel`. Shapes: x (..., hidden), bias (hidden,)."""
    if not x.numel():  # a GPU cannot launch a kernel without programs
        return _fake(x, bias, activation, kernel)
    result: Tensor = _KERNELS[kernel].forward(as_rows(x, kernel), bias, activation)
    return reshape_like(result, x)


def biased_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool, kernel: str
) -> tuple[Tensor, Tensor]:
    """The gradients of x and bias. That of bias is empty if it is not needed."""
    if not x.numel():
        return x.new_empty(x.shape), x.new_zeros(0) if bias is None or not wants_bias else torch.zeros_like(bias)
    x_gradient, bias_gradient = _KERNELS[kernel].backward(
        as_rows(grad, kernel), as_rows(x, kernel), bias, activation, wants_bias
    )
    return reshape_like(x_gradient, x), x.new_empty(0) if bias_gradient is None else bias_gradient


def _fake(x: Tensor, bias: Tensor | None, activation: str, kernel: str) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if bias is None else torch.promote_types(x.dtype, bias.dtype))


def _fake_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool, kernel: str
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if bias is None or not wants_bias else bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.activation, ctx.kernel = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias = ctx.saved_tensors
    x_gradient, bias_gradient = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():  # the caller differentiates this backward pass, too
        formula = lambda x, bias: BY_TORCH[ctx.activation](x if bias is None else x + bias)
        return *formula_gradients(formula, (x, bias), (grad,), (x_gradient, bias_gradient)), None, None
    dx, dbias = _biased_backward(grad, x, bias, ctx.activation, bias_gradient, ctx.kernel)
    return dx if x_gradient else None, dbias if bias_gradient else None, None, None


_biased = define(biased, _fake)
_biased_backward = define(biased_backward, _fake_backward)
differentiate(_biased, _gradients, _save)


def reason_torch_is_as_fast(x: Tensor, name: str) -> str:
    """The reason why torch is as fast as a compiled loop; "" if it is not.

    torch's exact GELU in 16 bits comes from oneDNN and takes half the time of a loop.
    """
    if name != "gelu" or x.dtype is torch.float32:
        return ""
    return "torch's own kernel for the exact GELU is as fast in 16 bits."
