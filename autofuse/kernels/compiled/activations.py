"""Activations and their derivatives in torch operations, for compiled loops, and regions of activations alone.

Each formula has at most one exponential, which value and derivative share, and no cancellation in the tail where an
activation vanishes. Everything is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from autofuse.kernels.compiled_regions import region

_TANH_SCALE, _TANH_CUBE = math.sqrt(2.0 / math.pi), 0.044715
_REGULAR, _SHORTEST = 4096, 64  # columns
_TOGETHER = 32  # rows that are summed at once
_SATURATED = 20.0  # above it, mish(x) equals x in float32


def forward(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias), elementwise, in the dtype to which both promote.

    Shapes: x (rows, hidden) with any stride of rows, bias (hidden,) or None.
    """
    result: Tensor
    result = _forward(*to_common_width(x), activation) if bias is None else _forward_biased(x, bias, activation)
    return result.view(x.shape)


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, wants_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if needed, of bias, from the gradient of the result."""
    if bias is not None:
        x_gradient = _backward_biased(grad, x, bias, activation)
        return x_gradient, sum_rows(x_gradient, len(x) % _TOGETHER == 0).to(bias.dtype) if wants_bias else None
    return _backward(*to_common_width(grad, x), activation).view(x.shape), None


def to_common_width(*operands: Tensor) -> tuple[Tensor, ...]:
    """(rows, hidden) operands as rows of a width that many shapes have in common, so that one loop serves them all.

    Only if rows are contiguous with each other. The width must not be the size that a loop leaves open, which would
    cost an integer division for each vector.
    """
    entries = operands[0].numel()
    width = math.gcd(entries, _REGULAR)
    if width < _SHORTEST or not all(x.is_contiguous() for x in operands):
        return operands
    return tuple(x.view(entries // width, width) for x in operands)


def value(x: Tensor, activation: str) -> Tensor:
    """activation(x) of a float32 tensor."""
    return _VALUES[activation](x) if activation in _VALUES else _FORMULAS[activation](x)[0]


def value_and_slope(x: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """activation(x) and its derivative, of a float32 tensor."""
    return _FORMULAS[activation](x)


@region(rows="x")
def _forward(x: Tensor, activation: str) -> Tensor:
    return value(x.float(), activation).to(x.dtype)


@region(rows="grad x")
def _backward(grad: Tensor, x: Tensor, activation: str) -> Tensor:
    return (grad.float() * value_and_slope(x.float(), activation)[1]).to(x.dtype)


@region(rows="x")
def _forward_biased(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    return value(x.float() + bias.float(), activation).to(torch.promote_types(x.dtype, bias.dtype))


@region(rows="grad x")
def _backward_biased(grad: Tensor, x: Tensor, bias: Tensor, activation: str) -> Tensor:
    return (grad.float() * value_and_slope(x.float() + bias.float(), activation)[1]).to(x.dtype)


@region(rows="x")
def sum_rows(x: Tensor, together: bool) -> Tensor:
    """The sum over rows in float32, in two steps if possible, so that memory is read in order."""
    return x.float().view(-1, _TOGETHER, x.shape[1]).sum(1).sum(0) if together else x.float().sum(0)


def _gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Uses the tail of the normal distribution by formula 7.1.26 of Abramowitz & Stegun.

    It is accurate to 1.5e-7, as torch's erf.
    """
    bell = torch.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + (0.3275911 * math.sqrt(0.5)) * x.abs())
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * bell
    below = torch.where(x < 0, tail, 1.0 - tail)
    return x * below, below + x * bell * (1.0 / math.sqrt(2.0 * math.pi))


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Uses 0.5 * (1 + tanh(z)) = sigmoid(2 * z), which costs half as much."""
    s, slope = _sigmoid(2.0 * _TANH_SCALE * x * (1.0 + _TANH_CUBE * x * x))
    near = x.clamp(-20.0, 20.0)  # beyond, the slope is 0; 0 times an infinite square would be nan
    return x * s, s + near * slope * (2.0 * _TANH_SCALE) * (1.0 + 3.0 * _TANH_CUBE * near * near)


def _silu(x: Tensor) -> tuple[Tensor, Tensor]:
    s, slope = _sigmoid(x)
    return x * s, s + x * slope


def _quick_gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    s, slope = _sigmoid(1.702 * x)
    return x * s, s + 1.702 * x * slope


def _relu(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.relu(), (x > 0).to(x.dtype)


def _relu_squared(x: Tensor) -> tuple[Tensor, Tensor]:
    r = x.relu()
    return r * r, 2.0 * r


def _mish(x: Tensor) -> tuple[Tensor, Tensor]:
    """Uses tanh(log(1 + e)) = n / (n + 2) with n = e * (e + 2)."""
    e = torch.exp(x.clamp(max=_SATURATED))
    n = e * (e + 2.0)
    t = n / (n + 2.0)
    return x * t, t + x * (e / (1.0 + e)) * (1.0 - t * t)


def _hardswish(x: Tensor) -> tuple[Tensor, Tensor]:
    inner = torch.where(x < 3.0, x / 3.0 + 0.5, 1.0)
    return x * (x + 3.0).clamp(0.0, 6.0) / 6.0, torch.where(x > -3.0, inner, 0.0)


def _sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the slope s * (1 - s) without the difference, which loses digits if s is near 1."""
    e = torch.exp(-x.abs())
    t = torch.reciprocal(1.0 + e)
    return torch.where(x > 0, t, e * t), e * t * t


def _tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.tanh(x)
    return t, 1.0 - t * t


def _identity(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.ones_like(x)


_FORMULAS: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {
        "gelu": _gelu,
        "gelu_tanh": _gelu_tanh,
        "quick_gelu": _quick_gelu,
        "silu": _silu,
        "relu": _relu,
        "relu_squared": _relu_squared,
        "mish": _mish,
        "hardswish": _hardswish,
        "sigmoid": _sigmoid,
        "tanh": _tanh,
        "identity": _identity,
    }
)
# Formulas for the value alone, if they are cheaper than those for value and slope.
_VALUES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu_tanh": lambda x: x * torch.sigmoid(2.0 * _TANH_SCALE * x * (1.0 + _TANH_CUBE * x * x)),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "silu": lambda x: x * torch.sigmoid(x),
        "sigmoid": torch.sigmoid,
    }
)
