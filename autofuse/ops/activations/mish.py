"""Mish."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__ = ["mish"]


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)), elementwise: Misra, arXiv:1908.08681."""
    return _OP(x)


_OP = define("mish", F.mish, in_kernels=True, wins_from=2**17)
