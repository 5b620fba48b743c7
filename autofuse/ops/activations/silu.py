"""SiLU, also called swish."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__ = ["silu"]


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise: Elfwing, Uchibe & Doya, arXiv:1702.03118."""
    return _OP(x)


_OP = define("silu", F.silu, in_kernels=True)
