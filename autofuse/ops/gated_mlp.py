"""A gated MLP's two projections and its gate.

Knows torch's kernel for a projection and our own for the gate; must not know which module owns the weights.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.activations import Activation
from autofuse.ops.gated import gated_product


def gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None = None, up_bias: Tensor | None = None,
    *, activation: Activation = "silu",
) -> Tensor:  # fmt: skip
    """activation(x @ gate_weight.T + gate_bias) * (x @ up_weight.T + up_bias).

    Shapes: x (..., in), both weights (hidden, in), as in nn.Linear, both biases (hidden,); the result is (..., hidden).
    With silu, gelu or relu this is SwiGLU, GEGLU or ReGLU: Shazeer, arXiv:2002.05202.
    Raises ValueError for an unknown activation.
    """
    return gated_product(F.linear(x, gate_weight, gate_bias), F.linear(x, up_weight, up_bias), activation=activation)
