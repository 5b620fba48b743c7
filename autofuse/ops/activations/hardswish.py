"""Hard swish."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__ = ["hardswish"]


def hardswish(x: Tensor) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6, elementwise: Howard et al., arXiv:1905.02244."""
    return _OP(x)


_OP = define("hardswish", F.hardswish, in_kernels=True)
