"""Feed-forward layers: two projections around an activation.

Knows torch's kernels for them; must not know which module owns the weights. Weights are as in nn.Linear: (out, in).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.activations import Activation
from autofuse.ops.activations import activation as activated


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
