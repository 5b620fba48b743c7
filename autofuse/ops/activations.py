"""Activations by name, each in one kernel of torch's.

Knows how an activation is computed; must not know where its input comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = str | Callable[[Tensor], Tensor]  # a name in ACTIVATIONS, or what computes it


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x * P(X <= x) for a standard normal X, elementwise.

    `approximate="none"` is 0.5 * x * (1 + erf(x / sqrt(2))); "tanh" is section 2 of the same paper,
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    Source: Hendrycks & Gimpel, arXiv:1606.08415. Raises RuntimeError for another `approximate`, or an integer `x`.
    """
    return F.gelu(x, approximate=approximate)


def gelu_tanh(x: Tensor) -> Tensor:
    """`gelu` by its tanh approximation."""
    return F.gelu(x, approximate="tanh")


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise: Elfwing, Uchibe & Doya, arXiv:1702.03118."""
    return F.silu(x)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)), elementwise: Misra, arXiv:1908.08681."""
    return F.mish(x)


def hardswish(x: Tensor) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6, elementwise: Howard et al., arXiv:1905.02244."""
    return F.hardswish(x)


def glu(x: Tensor) -> Tensor:
    """The first half of the last dimension times the sigmoid of the second: Dauphin et al., arXiv:1612.08083.

    Shapes: x (..., 2 * hidden); the result is (..., hidden). Raises RuntimeError for an odd last dimension.
    """
    return F.glu(x, dim=-1)


def activation(x: Tensor, name: Activation) -> Tensor:
    """The activation called `name`, one of ACTIVATIONS, elementwise; or what a function or a module makes of `x`.

    Raises ValueError for a name that is not in ACTIVATIONS.
    """
    if not isinstance(name, str):
        return name(x)
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ValueError(f"There is no activation called {name!r}. Use one of {', '.join(sorted(ACTIVATIONS))}.")
    return function(x)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # the sigmoid approximation of the GELU paper, as CLIP uses it


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()  # So et al., arXiv:2109.08668


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": F.gelu,
        "gelu_tanh": gelu_tanh,
        "quick_gelu": _quick_gelu,
        "silu": F.silu,
        "relu": F.relu,
        "relu_squared": _relu_squared,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "identity": _identity,
    }
)
