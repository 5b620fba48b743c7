"""ReLU and its square, as names for `activation`, gates and MLPs."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__: list[str] = []


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()  # So et al., arXiv:2109.08668


define("relu", F.relu, in_kernels=True)
define("relu_squared", _relu_squared, in_kernels=True, wins_from=2**20, on_cuda=True)
