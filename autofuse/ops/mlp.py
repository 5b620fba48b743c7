"""Linear-activation-Linear, as one operator that keeps x and the hidden layer before its bias, and nothing else.

torch's code keeps the hidden layer twice, before and after its activation. Here the backward pass computes the
activation again, in the pass over the hidden layer that it makes anyway. Weights are as in nn.Linear: (out, in).
Knows torch's matrix products and our loops; must not know which module owns the weights.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import Kernels, by_formula, define, differentiate
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import autocasts, first, no_dropout, one_dtype
from autofuse.kernels.row_shapes import rows
from autofuse.ops.activations import Activation, named
from autofuse.ops.activations import activation as activated
from autofuse.ops.elementwise import BY_TORCH

_KERNELS = Kernels(triton="autofuse.kernels.triton.mlp", compiled="autofuse.kernels.compiled.mlp")


def mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """dropout(activation(x @ up_weight.T + up_bias)) @ down_weight.T + down_bias.

    Shapes: x (..., in), up_weight (hidden, in), down_weight (out, hidden); the result is (..., out). Entries of the
    hidden layer are dropped with probability `dropout_p` while `training`. Raises ValueError for an unknown activation.
    """
    made: Tensor = _OP(
        x, up_weight, up_bias, down_weight, down_bias, activation=activation, dropout_p=dropout_p, training=training
    )
    return made


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
    """The result (..., out), and x @ up_weight.T (rows, hidden), which is empty unless a backward pass `keeps` it."""
    forward = _KERNELS[kernel].forward if keeps else _KERNELS[kernel].forward_alone
    made = forward(rows(x), up_weight, up_bias, down_weight, down_bias, activation)
    result, projected = made if keeps else (made, x.new_empty(0))
    return result.view(*x.shape[:-1], down_weight.shape[0]), projected


def linear_activation_linear_backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: list[bool], kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, up_weight, up_bias, down_weight and down_bias; empty where they are not `wanted`."""
    found = iter(
        _KERNELS[kernel].backward(
            rows(grad), rows(x), projected, up_weight, up_bias, down_weight, activation, tuple(wanted)
        )
    )
    of_x, *others = (next(found) if wants else x.new_empty(0) for wants in wanted)
    return of_x.view(x.shape) if wanted[0] else of_x, *others  # type: ignore[return-value]


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
    """One product for each weight's gradient, one for x's, and one for the hidden layer's, which all but two need."""
    of_x, of_up, of_up_bias, of_down, _of_down_bias = wanted
    up, down = math.prod(up_weight), math.prod(down_weight)
    products = up * (of_x + of_up) + down * ((of_x or of_up or of_up_bias) + of_down)
    return int(2 * math.prod(x[:-1]) * products)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, up_weight, up_bias, down_weight, down_bias, ctx.activation, _, ctx.kernel = inputs
    ctx.save_for_backward(x, output[1], up_weight, up_bias, down_weight, down_bias)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:5]
    if grad is None:
        return (None,) * 8
    x, projected, up_weight, up_bias, down_weight, down_bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = partial(_formula, ctx.activation)
        return *by_formula(formula, (x, up_weight, up_bias, down_weight, down_bias), (grad,), wanted), None, None, None
    found = _backward(grad, x, projected, up_weight, up_bias, down_weight, ctx.activation, list(wanted), ctx.kernel)
    return *(g if wants else None for g, wants in zip(found, wanted, strict=True)), None, None, None


def _formula(
    name: str, x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None
) -> Tensor:
    return F.linear(BY_TORCH[name](F.linear(x, up_weight, up_bias)), down_weight, down_bias)


_forward = define(linear_activation_linear, _fake, _flops)
_backward = define(linear_activation_linear_backward, _fake_backward, _flops_backward)
differentiate(_forward, _gradients, _save)


def _misfit(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    return first(
        named(activation),
        no_dropout(dropout_p, training),
        "" if autocasts(x) else one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        _shapes(x, up_weight, up_bias, down_weight, down_bias),
    )


def _shapes(x: Tensor, up_weight: Tensor, up_bias: Any, down_weight: Tensor, down_bias: Any) -> str:
    """What F.linear would refuse is left to F.linear, whose message is better known."""
    fits = up_weight.ndim == down_weight.ndim == 2 and x.shape[-1:] == up_weight.shape[1:]
    fits = fits and down_weight.shape[1:] == up_weight.shape[:1]
    for bias, weight in ((up_bias, up_weight), (down_bias, down_weight)):
        fits = fits and (bias is None or bias.shape == weight.shape[:1])
    return "" if fits else "It takes x (..., in), weights (hidden, in) and (out, hidden), biases (hidden,) and (out,)."


def _by_kernel(
    kernel: str, x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: str = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    operands = x, up_weight, up_bias, down_weight, down_bias
    if autocasts(x):  # as torch does before each of its linear layers
        dtype = torch.get_autocast_dtype(x.device.type)
        operands = tuple(t if t is None else t.to(dtype) for t in operands)  # type: ignore[assignment]
    keeps = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    return _forward(*operands, activation, keeps, kernel)[0]


_KEPT = "x and the hidden layer before its bias are kept; the activation is computed again."
_OP = Operation(
    "mlp",
    (
        Provider(
            "mlp", "triton", TRITON, partial(_by_kernel, "triton"), check=_misfit, devices=("cuda",), default=True,
            summary="torch's products, and between them one Triton kernel for bias and activation.", gradient=_KEPT,
        ),
        Provider(
            "mlp", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_misfit, devices=("cpu",),
            default=True,
            summary="torch's products, and between them one loop that Inductor compiles.", gradient=_KEPT,
        ),
        Provider(
            "mlp", "torch", TORCH, _by_torch, default=True, summary="torch linear, activation, linear.",
            gradient="torch's own; the hidden layer is kept before and after its activation.",
        ),
    ),
)  # fmt: skip
