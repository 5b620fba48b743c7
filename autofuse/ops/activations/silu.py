"""SiLU, also called swish."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.activation_table import define

__all__ = ["silu"]


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise: Elfwing, Uchibe & Doya, arXiv:1702.03118."""
    return _OP(x)


_OP = define("silu", F.silu, in_kernels=True)
