"""Linear-activation-Linear on the GPU: torch's products, and between them the kernels of activations.py.

Only the hidden layer before its bias is saved. The kernel that computes its gradient computes the activation again.
Tensors are (rows, columns). There is no autograd here.
"""

from __future__ import annotations

from torch import Tensor, addmm, mm

from autofuse.kernels.ahead_of_time import Ahead
from autofuse.kernels.triton import activations


def forward(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The result (rows, out), and x @ up_weight.T (rows, hidden) for the backward pass."""
    projected = mm(x, up_weight.mT)
    hidden = activations.forward(projected, up_bias, activation)
    result = mm(hidden, down_weight.mT) if down_bias is None else addmm(down_bias, hidden, down_weight.mT)
    return result, projected


def forward_alone(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """The result without x @ up_weight.T."""
    return forward(x, up_weight, up_bias, down_weight, down_bias, activation)[0]


def backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: tuple[bool, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients in `wanted`, out of five: x, up_weight, up_bias, down_weight, down_bias."""
    of_x, of_up, of_up_bias, of_down, of_down_bias = wanted
    made: list[Tensor] = []
    of_hidden, of_bias, hidden = activations.backward_again(
        mm(grad, down_weight), projected, up_bias, activation, of_up_bias
    )
    made += [mm(of_hidden, up_weight)] if of_x else []
    made += [mm(of_hidden.mT, x)] if of_up else []
    made += [of_bias] if of_bias is not None else []
    made += [mm(grad.mT, hidden)] if of_down else []
    made += [grad.sum(0)] if of_down_bias else []
    return tuple(made)


AHEAD: tuple[Ahead, ...] = ()  # this file has no kernels
