"""Sigmoid, tanh and identity, as names for `activation`, gates and MLPs."""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.ops.activation_table import define

__all__: list[str] = []


def _identity(x: Tensor) -> Tensor:
    return x


define("sigmoid", torch.sigmoid, in_kernels=True)
define("tanh", torch.tanh, in_kernels=True)
define("identity", _identity, in_kernels=True)
