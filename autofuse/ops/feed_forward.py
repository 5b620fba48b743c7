"""Feed-forward layers: two projections around an activation, plain or gated.

Knows torch's kernels for them; must not know which module owns the weights. Weights are as in nn.Linear: (out, in).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.activations import Activation
from autofuse.ops.activations import activation as activated


def gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None = None, up_bias: Tensor | None = None,
    *, activation: Activation = "silu",
) -> Tensor:  # fmt: skip
    """activation(x @ gate_weight.T + gate_bias) * (x @ up_weight.T + up_bias).

    Shapes: x (..., in), both weights (hidden, in), both biases (hidden,); the result is (..., hidden).
    With silu, gelu or relu this is SwiGLU, GEGLU or ReGLU: Shazeer, arXiv:2002.05202.
    Raises ValueError for an unknown activation.
    """
    return activated(F.linear(x, gate_weight, gate_bias), activation) * F.linear(x, up_weight, up_bias)


def gated_product(gate: Tensor, up: Tensor, *, activation: Activation = "silu") -> Tensor:
    """activation(gate) * up, elementwise, broadcast against each other.

    Raises ValueError for an unknown activation.
    """
    return activated(gate, activation) * up


def gated_activation(x: Tensor, *, activation: Activation = "silu", gate_first: bool = True) -> Tensor:
    """activation(gate) * up, where gate and up are the halves of `x` along its last dimension.

    Shapes: x (..., 2 * hidden); the result is (..., hidden). The gate is the first half if `gate_first`, else the
    second. Raises ValueError for an unknown activation or an odd last dimension.
    """
    if x.shape[-1] % 2:
        raise ValueError(
            f"gated_activation was given a last dimension of {x.shape[-1]}, which does not divide into a gate and an "
            "up half. Pass both, one half after the other."
        )
    first, second = x.chunk(2, dim=-1)
    gate, up = (first, second) if gate_first else (second, first)
    return activated(gate, activation) * up


def mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Activation = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Tensor:  # fmt: skip
    """dropout(activation(x @ up_weight.T + up_bias)) @ down_weight.T + down_bias.

    Shapes: x (..., in), up_weight (hidden, in), down_weight (out, hidden); the result is (..., out). Entries of the
    hidden layer are dropped with probability `dropout_p` while `training`. Raises ValueError for an unknown activation.
    """
    hidden = activated(F.linear(x, up_weight, up_bias), activation)
    if training and dropout_p:
        hidden = F.dropout(hidden, dropout_p)
    return F.linear(hidden, down_weight, down_bias)
