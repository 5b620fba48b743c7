"""Linear, activation, linear as one operator, which saves only x and the hidden layer before its bias.

torch's code saves the hidden layer twice, before and after its activation. Here the backward pass computes the
activation again, in a pass over the hidden layer that it makes anyway. Weights are (out, in), as in nn.Linear.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import autocasts, first_refusal, no_dropout, one_dtype
from autofuse.kernels.row_shapes import rows
from autofuse.ops.activations import Activation, activation_refusal
from autofuse.ops.activations import activation as activated
from autofuse.ops.elementwise import BY_TORCH
from autofuse.torch_private import functional as F

_KERNELS = Kernels(triton="autofuse.kernels.triton.mlp", compiled="autofuse.kernels.compiled.mlp")


def mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """dropout(activation(x @ up_weight.T + up_bias)) @ down_weight.T + down_bias.

    Args:
        x: shape (..., in).
        up_weight: shape (hidden, in).
        up_bias: shape (hidden,), or None.
        down_weight: shape (out, hidden).
        down_bias: shape (out,), or None.
        activation: the name of an activation, or a function.
        dropout_p: the probability with which entries of the hidden layer are dropped while `training`.
        training: whether dropout is active.

    Returns:
        A tensor of shape (..., out).

    Raises:
        ValueError: if the activation is unknown.
    """
    result: Tensor = _OP(
        x, up_weight, up_bias, down_weight, down_bias, activation=activation, dropout_p=dropout_p, training=training
    )
    return result


def _by_torch(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    hidden = activated(F.linear(x, up_weight, up_bias), activation)
    if training and dropout_p:
        hidden = F.dropout(hidden, dropout_p)
    return F.linear(hidden, down_weight, down_bias)


def linear_activation_linear(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    activation: str, keeps: bool, kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result (..., out), and x @ up_weight.T, (rows, hidden), which is empty unless `keeps` asks to save it."""
    forward = _KERNELS[kernel].forward if keeps else _KERNELS[kernel].forward_alone
    output = forward(rows(x), up_weight, up_bias, down_weight, down_bias, activation)
    result, projected = output if keeps else (output, x.new_empty(0))
    return result.view(*x.shape[:-1], down_weight.shape[0]), projected


def linear_activation_linear_backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: list[bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, up_weight, up_bias, down_weight and down_bias; empty if not in `wanted`."""
    gradients = iter(
        _KERNELS[kernel].backward(
            rows(grad), rows(x), projected, up_weight, up_bias, down_weight, activation, tuple(wanted)
        )
    )
    x_gradient, *others = (next(gradients) if wants else x.new_empty(0) for wants in wanted)
    return x_gradient.view(x.shape) if wanted[0] else x_gradient, *others  # type: ignore[return-value]


def _fake(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    activation: str, keeps: bool, kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    projected = x.new_empty((math.prod(x.shape[:-1]), up_weight.shape[0]) if keeps else (0,))
    return x.new_empty((*x.shape[:-1], down_weight.shape[0])), projected


def _fake_backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: list[bool], kernel: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    shapes = x.shape, up_weight.shape, up_weight.shape[:1], down_weight.shape, down_weight.shape[:1]
    return tuple(x.new_empty(shape if wants else (0,)) for shape, wants in zip(shapes, wanted, strict=True))


def _flops(x: Any, up_weight: Any, up_bias: Any, down_weight: Any, *others: Any, **_: Any) -> int:
    return int(2 * math.prod(x[:-1]) * (math.prod(up_weight) + math.prod(down_weight)))


def _flops_backward(
    grad: Any, x: Any, projected: Any, up_weight: Any, up_bias: Any, down_weight: Any, activation: Any, wanted: Any,
    *_: Any, **__: Any,
) -> int:  # fmt: skip
    """A product for each weight's gradient, one for x's, and one for the hidden layer's.

    All gradients but those of down_weight and down_bias need the hidden layer's.
    """
    x_gradient, of_up, of_up_bias, of_down, _of_down_bias = wanted
    up, down = math.prod(up_weight), math.prod(down_weight)
    products = up * (x_gradient + of_up) + down * ((x_gradient or of_up or of_up_bias) + of_down)
    return int(2 * math.prod(x[:-1]) * products)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, up_weight, up_bias, down_weight, down_bias, ctx.activation, _, ctx.kernel = inputs
    ctx.save_for_backward(x, output[1], up_weight, up_bias, down_weight, down_bias)
    ctx.mark_non_differentiable(output[1])  # only the backward pass reads it
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:5]
    if grad is None:
        return (None,) * 8
    x, projected, up_weight, up_bias, down_weight, down_bias = ctx.saved_tensors
    if torch.is_grad_enabled():  # the caller differentiates this backward pass, too
        formula = partial(_formula, ctx.activation)
        return (
            *formula_gradients(formula, (x, up_weight, up_bias, down_weight, down_bias), (grad,), wanted),
            None,
            None,
            None,
        )
    gradients = _backward(grad, x, projected, up_weight, up_bias, down_weight, ctx.activation, list(wanted), ctx.kernel)
    return *(g if wants else None for g, wants in zip(gradients, wanted, strict=True)), None, None, None


def _formula(
    name: str, x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None
) -> Tensor:
    return F.linear(BY_TORCH[name](F.linear(x, up_weight, up_bias)), down_weight, down_bias)


_forward = define(linear_activation_linear, _fake, _flops)
_backward = define(linear_activation_linear_backward, _fake_backward, _flops_backward)
differentiate(_forward, _gradients, _save)


def _refusal(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    return first_refusal(
        activation_refusal(activation),
        no_dropout(dropout_p, training),
        "" if autocasts(x) else one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        _shape_refusal(x, up_weight, up_bias, down_weight, down_bias),
    )


def _shape_refusal(x: Tensor, up_weight: Tensor, up_bias: Any, down_weight: Tensor, down_bias: Any) -> str:
    """The reason why the shapes do not fit. F.linear then raises its own, better known error."""
    fits = up_weight.ndim == down_weight.ndim == 2 and x.shape[-1:] == up_weight.shape[1:]
    fits = fits and down_weight.shape[1:] == up_weight.shape[:1]
    for bias, weight in ((up_bias, up_weight), (down_bias, down_weight)):
        fits = fits and (bias is None or bias.shape == weight.shape[:1])
    return "" if fits else "It needs x (..., in), weights (hidden, in) and (out, hidden), biases (hidden,) and (out,)."


def _by_kernel(
    kernel: str, x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: str = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    operands = x, up_weight, up_bias, down_weight, down_bias
    if autocasts(x):  # torch casts before each linear layer, too
        dtype = torch.get_autocast_dtype(x.device.type)
        operands = tuple(t if t is None else t.to(dtype) for t in operands)  # type: ignore[assignment]
    # Without gradients the hidden layer is not written a second time.
    keeps = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    return _forward(*operands, activation, keeps, kernel)[0]


_SAVED = "x and the hidden layer before its bias are saved; the activation is computed again."
_OP = Operation(
    "mlp",
    (
        Provider(
            "mlp", "triton", TRITON, partial(_by_kernel, "triton"), check=_refusal, devices=("cuda",), default=True,
            summary="torch's products, and between them one Triton kernel for bias and activation.", gradient=_SAVED,
        ),
        Provider(
            "mlp", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refusal, devices=("cpu",),
            default=True,
            summary="torch's products, and between them one loop that Inductor compiles.", gradient=_SAVED,
        ),
        Provider(
            "mlp", "torch", TORCH, _by_torch, default=True, summary="torch linear, activation, linear.",
            gradient="torch's own; the hidden layer is saved before and after its activation.",
        ),
    ),
)  # fmt: skip
