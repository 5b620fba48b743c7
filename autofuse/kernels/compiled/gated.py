"""Gated activations on the CPU: one loop forward, and one backward that computes the activation again.

Tensors are (rows, hidden), with any stride of rows. There is no autograd here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.kernels.compiled.activations import to_common_width, value, value_and_slope
from autofuse.kernels.compiled_regions import region


def forward(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up."""
    result: Tensor = _forward(*to_common_width(gate, up), activation)
    return result.view(gate.shape)


def backward(grad: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    gate_gradient, up_gradient = _backward(*to_common_width(grad, gate, up), activation)
    return gate_gradient.view(gate.shape), up_gradient.view(up.shape)


@region(rows="gate up")
def _forward(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return (value(gate.float(), activation) * up.float()).to(gate.dtype)


@region(rows="grad gate up")
def _backward(grad: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return _gradients(grad, gate, up, activation)


@region(rows="x")
def packed_forward(x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """activation(gate) * up for the halves of x (rows, 2 * hidden)."""
    gate, up = _halves(x, gate_first)
    return (value(gate.float(), activation) * up.float()).to(x.dtype)


@region(rows="grad x")
def packed_backward(grad: Tensor, x: Tensor, activation: str, gate_first: bool) -> Tensor:
    """The gradient of x, both halves in one pass."""
    gate_gradient, up_gradient = _gradients(grad, *_halves(x, gate_first), activation)
    return torch.cat((gate_gradient, up_gradient) if gate_first else (up_gradient, gate_gradient), dim=-1)


def _halves(x: Tensor, gate_first: bool) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, dim=-1)
    return (first, second) if gate_first else (second, first)


def _gradients(grad: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    activated, slope = value_and_slope(gate.float(), activation)
    grad = grad.float()
    return (grad * up.float() * slope).to(gate.dtype), (grad * activated).to(up.dtype)
