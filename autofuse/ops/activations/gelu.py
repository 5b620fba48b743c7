"""GELU: exact, with its tanh approximation, and with its sigmoid approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__ = ["gelu", "gelu_tanh"]


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x * P(X <= x) for a standard normal X, elementwise.

    Args:
        x: any shape.
        approximate: "none" for 0.5 * x * (1 + erf(x / sqrt(2))); "tanh" for 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x +
            0.044715 * x**3))), section 2 of the source.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError: if `approximate` is another string, or `x` has an integer dtype.

    Source: Hendrycks & Gimpel, arXiv:1606.08415.
    """
    return gelu_tanh(x) if approximate == "tanh" else _GELU(x, approximate=approximate)


def gelu_tanh(x: Tensor) -> Tensor:
    """`gelu` with its tanh approximation."""
    return _GELU_TANH(x)


def _tanh_by_torch(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # the sigmoid approximation of the GELU paper; CLIP uses it


_GELU = define("gelu", F.gelu, in_kernels=True)
_GELU_TANH = define("gelu_tanh", _tanh_by_torch, in_kernels=True, wins_from=2**18)
define("quick_gelu", _quick_gelu, in_kernels=True, wins_from=2**20, on_cuda=True)
