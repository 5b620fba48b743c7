"""Softplus."""

from __future__ import annotations

from torch import Tensor

from autofuse.ops.activation_table import define
from autofuse.torch_private import functional as F

__all__ = ["softplus"]


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold, elementwise.

    Finite for finite x, in every floating dtype: the result is x where exp(x) would overflow.

    Args:
        x: any shape.
        beta: the steepness.
        threshold: above it, the result is x.

    Returns:
        A tensor of x's shape and dtype.

    Source: Dugas et al., Incorporating Second-Order Functional Knowledge for Better Option Pricing, NIPS 2000.
    """
    return _OP(x, beta=beta, threshold=threshold)


_OP = define("softplus", F.softplus)
