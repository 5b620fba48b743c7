"""Activations by name, of x or of x + bias, elementwise: torch's own code, and one operator for our kernels.

What our kernels keep for the backward pass is x and the bias, not their sum nor what the formula goes through, and the
bias's gradient is summed in an order that does not change. Knows activations; must not know where x comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operators import Kernels, by_formula, define, differentiate
from autofuse.kernels.row_shapes import as_rows, shaped

_BY_TORCH: dict[str, Callable[..., Tensor]] = {}
BY_TORCH: Mapping[str, Callable[..., Tensor]] = MappingProxyType(_BY_TORCH)
_KERNELS = Kernels(triton="autofuse.kernels.triton.activations", compiled="autofuse.kernels.compiled.activations")


def enter(name: str, function: Callable[..., Tensor]) -> None:
    """Say how torch computes the activation `name`."""
    _BY_TORCH[name] = function


def biased_by(kernel: str, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias) by the kernels of `kernel`: "triton" or "compiled". Shapes: x (..., hidden), bias (hidden,).

    The result has the dtype to which both promote.
    """
    made: Tensor = _biased(x, bias, activation, kernel)
    return made


def biased(x: Tensor, bias: Tensor | None, activation: str, kernel: str) -> Tensor:
    """activation(x + bias) by `kernel`. Shapes: x (..., hidden), bias (hidden,)."""
    if not x.numel():
        return _fake(x, bias, activation, kernel)
    made: Tensor = _KERNELS[kernel].forward(as_rows(x, kernel), bias, activation)
    return shaped(made, x)


def biased_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool, kernel: str
) -> tuple[Tensor, Tensor]:
    """The gradients of x and bias; the latter is empty where it is not wanted."""
    if not x.numel():
        return x.new_empty(x.shape), x.new_zeros(0) if bias is None or not wants_bias else torch.zeros_like(bias)
    of_x, of_bias = _KERNELS[kernel].backward(as_rows(grad, kernel), as_rows(x, kernel), bias, activation, wants_bias)
    return shaped(of_x, x), x.new_empty(0) if of_bias is None else of_bias


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
    of_x, of_bias = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():
        formula = lambda x, bias: BY_TORCH[ctx.activation](x if bias is None else x + bias)
        return *by_formula(formula, (x, bias), (grad,), (of_x, of_bias)), None, None
    dx, dbias = _biased_backward(grad, x, bias, ctx.activation, of_bias, ctx.kernel)
    return dx if of_x else None, dbias if of_bias else None, None, None


_biased = define(biased, _fake)
_biased_backward = define(biased_backward, _fake_backward)
differentiate(_biased, _gradients, _save)


def beaten_by_torch(x: Tensor, name: str) -> str:
    """Where a loop is no faster: torch's exact GELU in 16 bits is oneDNN's, which takes half the time of a loop."""
    if name != "gelu" or x.dtype is torch.float32:
        return ""
    return "torch's own kernel of the exact GELU is as fast in 16 bits."
