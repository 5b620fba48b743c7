"""Linear-activation-Linear on the CPU: between the two products nothing but one loop, which adds the bias as well.

The hidden layer before its bias is all that is kept; the backward pass computes the activation again, in the loop that
computes its gradient. The products are torch's own; that they are part of the region lets the compiler put one hidden
layer in the memory of another. Knows tensors; must not know autograd.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from autofuse.kernels.compiled.activations import value, value_and_slope
from autofuse.kernels.compiled_regions import region


@region(rows="x")
def forward(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The result (rows, out), and x @ up_weight.T (rows, hidden) for the backward pass."""
    projected = torch.mm(x, up_weight.t())
    return _down(projected, up_bias, down_weight, down_bias, activation), projected


@region(rows="x")
def forward_alone(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """The result alone."""
    return _down(torch.mm(x, up_weight.t()), up_bias, down_weight, down_bias, activation)


@region(rows="grad x projected")
def backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: tuple[bool, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients that are `wanted`, of five: x, up_weight, up_bias, down_weight, down_bias."""
    hidden, slope = value_and_slope(_biased(projected, up_bias), activation)
    of_hidden = (torch.mm(grad, down_weight).float() * slope).to(x.dtype)
    found: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.mm(of_hidden, up_weight),
        lambda: torch.mm(of_hidden.t(), x),
        lambda: of_hidden.sum(0),
        lambda: torch.mm(grad.t(), hidden.to(x.dtype)),
        lambda: grad.sum(0),
    )
    made = {i: found[i]() for i in (3, 4, 2, 1, 0) if wanted[i]}  # first what frees the hidden layer
    return tuple(made[i] for i in sorted(made))


def _down(projected: Tensor, up_bias: Tensor | None, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    hidden = value(_biased(projected, up_bias), activation).to(projected.dtype)
    return torch.mm(hidden, weight.t()) if bias is None else torch.addmm(bias, hidden, weight.t())


def _biased(projected: Tensor, bias: Tensor | None) -> Tensor:
    return projected.float() if bias is None else projected.float() + bias.float()
