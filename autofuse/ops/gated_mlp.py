"""The two projections of a gated MLP and their gate."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activations import Activation
from autofuse.ops.gated import gated_product
from autofuse.torch_private import functional as F


def gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None = None, up_bias: Tensor | None = None,
    *, activation: Activation = "silu",
) -> Tensor:  # fmt: skip
    """activation(x @ gate_weight.T + gate_bias) * (x @ up_weight.T + up_bias).

    With silu, gelu or relu this is SwiGLU, GEGLU or ReGLU: Shazeer, arXiv:2002.05202.

    Args:
        x: shape (..., in).
        gate_weight: shape (hidden, in), as in nn.Linear.
        up_weight: shape (hidden, in).
        gate_bias: shape (hidden,), or None.
        up_bias: shape (hidden,), or None.
        activation: the name of an activation, or a function.

    Returns:
        A tensor of shape (..., hidden).

    Raises:
        ValueError: if the activation is unknown.
    """
    return gated_product(F.linear(x, gate_weight, gate_bias), F.linear(x, up_weight, up_bias), activation=activation)
