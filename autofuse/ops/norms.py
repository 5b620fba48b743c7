"""Normalisations over the last dimension, in torch's kernels.

Knows which operands those kernels take; must not know how a model spells a norm. What a kernel does not take (a weight
of another dtype or shape, a number) is applied after it, with the result type that hand-written code would have.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

Affine = Tensor | float | None


def layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, mean and biased variance over the last dimension.

    Shapes: x (..., C). weight and bias are usually (C,), and may be anything that broadcasts against x.
    The result has the dtype to which x, weight and bias promote; statistics are taken in fp32 or better.
    Source: Ba, Kiros & Hinton, arXiv:1607.06450.
    """
    sizes = x.shape[-1:]
    if _is_usual(weight, x, sizes) and _is_usual(bias, x, sizes):
        return torch.layer_norm(x, sizes, weight, bias, eps)  # type: ignore[arg-type]
    scale, shift = _fitting(weight, x), _fitting(bias, x)
    if (weight is None) == (scale is None) and (bias is None) == (shift is None):
        return F.layer_norm(x, x.shape[-1:], scale, shift, eps)
    return _affine(F.layer_norm(x, x.shape[-1:], eps=eps), weight, bias)


def rms_norm(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension.

    Shapes, dtypes: as `layer_norm`. Source: Zhang & Sennrich, arXiv:1910.07467.
    """
    sizes = x.shape[-1:]
    if _is_usual(weight, x, sizes):
        return torch.rms_norm(x, sizes, weight, eps)  # type: ignore[arg-type]
    scale = _fitting(weight, x)
    if (weight is None) == (scale is None):
        return F.rms_norm(x, x.shape[-1:], scale, eps)
    return _affine(F.rms_norm(x, x.shape[-1:], eps=eps), weight, None)


@overload
def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """norm(residual + dropout(x)), the step between two blocks of a transformer.

    Shapes: x and residual (..., C), broadcast against each other; weight and bias as in `layer_norm`. Entries of x are
    dropped with probability `dropout_p` while `training`. `norm` is "layer" or "rms" (where a bias is added after it).
    With `prenorm` the sum lives on: the result is the pair (sum, normed).
    Raises ValueError for another `norm`.
    """
    if norm not in ("layer", "rms"):
        raise ValueError(f'dropout_add_norm was asked for a norm called {norm!r}. Use "layer" or "rms".')
    total = residual + (F.dropout(x, dropout_p) if training and dropout_p else x)
    normed = layer_norm(total, weight, bias, eps) if norm == "layer" else _shifted(rms_norm(total, weight, eps), bias)
    return (total, normed) if prenorm else normed


def _is_usual(operand: Affine, x: Tensor, sizes: torch.Size) -> bool:
    """Whether the kernels take `operand` as it is."""
    return operand is None or isinstance(operand, Tensor) and operand.dtype is x.dtype and operand.shape == sizes


def _fitting(operand: Affine, x: Tensor) -> Tensor | None:
    """`operand` as the kernels take it, (C,) and of x's dtype; None where it is not that."""
    if not isinstance(operand, Tensor) or operand.dtype != x.dtype or operand.ndim > x.ndim or operand.ndim == 0:
        return None
    if operand.ndim > 1 and operand.shape[:-1].numel() != 1:
        return None
    return operand.reshape(-1) if operand.shape[-1] == x.shape[-1] else None


def _affine(normed: Tensor, weight: Affine, bias: Affine) -> Tensor:
    return _shifted(normed if weight is None else normed * weight, bias)


def _shifted(normed: Tensor, bias: Affine) -> Tensor:
    return normed if bias is None else normed + bias
