"""Linear-activation-Linear on the CPU, with one loop between the two products, which also adds the bias.

Only the hidden layer before its bias is saved. The backward pass computes the activation again, in the loop that
computes its gradient. torch computes the products. They are part of the region, so that the compiler can reuse the
memory of one hidden layer for another. There is no autograd here.
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
    return _project_down(projected, up_bias, down_weight, down_bias, activation), projected


@region(rows="x")
def forward_alone(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """The result without x @ up_weight.T."""
    return _project_down(torch.mm(x, up_weight.t()), up_bias, down_weight, down_bias, activation)


@region(rows="grad x projected")
def backward(
    grad: Tensor, x: Tensor, projected: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
    activation: str, wanted: tuple[bool, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients in `wanted`, out of five: x, up_weight, up_bias, down_weight, down_bias."""
    hidden, slope = value_and_slope(_add_bias(projected, up_bias), activation)
    hidden_gradient = (torch.mm(grad, down_weight).float() * slope).to(x.dtype)
    computations: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.mm(hidden_gradient, up_weight),
        lambda: torch.mm(hidden_gradient.t(), x),
        lambda: hidden_gradient.sum(0),
        lambda: torch.mm(grad.t(), hidden.to(x.dtype)),
        lambda: grad.sum(0),
    )
    gradients = {i: computations[i]() for i in (3, 4, 2, 1, 0) if wanted[i]}  # this order frees the hidden layer early
    return tuple(gradients[i] for i in sorted(gradients))


def _project_down(
    projected: Tensor, up_bias: Tensor | None, weight: Tensor, bias: Tensor | None, activation: str
) -> Tensor:
    hidden = value(_add_bias(projected, up_bias), activation).to(projected.dtype)
    return torch.mm(hidden, weight.t()) if bias is None else torch.addmm(bias, hidden, weight.t())


def _add_bias(projected: Tensor, bias: Tensor | None) -> Tensor:
    return projected.float() if bias is None else projected.float() + bias.float()
