"""The plain formula of a linear layer on the rows of each expert."""

from __future__ import annotations

import torch
from torch import Tensor


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
    """Each row times the matrix of its expert. Shapes as in `autofuse.ops.expert_linear`."""
    expert = torch.searchsorted(ends, torch.arange(x.shape[0]), right=True)
    matrix = weight[expert].transpose(1, 2) if transposed else weight[expert]
    product = torch.einsum("rd,rfd->rf", x, matrix)
    return product if bias is None else product + bias[expert]


grouped_linear = expert_linear
