"""NVIDIA apex: norms, cross entropy, Linear-GELU-Linear and Adam from its CUDA extensions.

Its functions have undocumented properties, which this file handles (repository as of July 2026):

- Cross entropy treats class 0 as padding by default, reads outside the logits for a target of -100, modifies the
  gradient that it receives, and fails in the backward pass for bfloat16.
- Fused dense layers read operands as contiguous and do not check whether the product was computed. So only sizes that
  cuBLASLt supports are passed.
- Under autocast its functions cast even where torch computes in float32. So the autograd functions behind them are
  called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.loss_arguments import as_rows, reduce_losses, row_loss_refusal, torch_ignore_index
from autofuse.kernels.package_functions import (
    PackageFunction,
    once_differentiable,
    twice_differentiable,
    with_contiguous_gradient,
)
from autofuse.kernels.packages import APEX_DENSE, APEX_LOSSES, APEX_NORMS
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import (
    autocast_dtype,
    first_refusal,
    multiples_of,
    no_autocast,
    no_dropout,
    norm_operand,
    number,
    one_dtype,
)

_NORMS = "apex.normalization.fused_layer_norm"
_LAYER_NORM = PackageFunction(
    _NORMS, "FusedLayerNormAffineFunction", ("input", "weight", "bias", "normalized_shape", "eps", "memory_efficient")
)
_PLAIN_LAYER_NORM = PackageFunction(
    _NORMS, "FusedLayerNormFunction", ("input", "normalized_shape", "eps", "memory_efficient")
)
_RMS_NORM = PackageFunction(
    _NORMS, "FusedRMSNormAffineFunction", ("input", "weight", "normalized_shape", "eps", "memory_efficient")
)
_PLAIN_RMS_NORM = PackageFunction(
    _NORMS, "FusedRMSNormFunction", ("input", "normalized_shape", "eps", "memory_efficient")
)
_CROSS_ENTROPY = PackageFunction(
    "apex.contrib.xentropy.softmax_xentropy", "SoftmaxCrossEntropyLoss",
    ("logits", "labels", "smoothing", "padding_idx", "half_to_float"),
)  # fmt: skip
_MLP = PackageFunction(
    "apex.fused_dense.fused_dense", "FusedDenseGeluDenseFunc", ("input", "weight1", "bias1", "weight2", "bias2")
)
FUSED_ADAM = PackageFunction(
    "apex.optimizers.fused_adam", "FusedAdam", ("params",), ("lr", "betas", "eps", "adam_w_mode", "weight_decay")
)
_NO_CLASS = -1  # equals no target, so that apex treats no class as padding


def _rms_norm_refusal(x: Tensor, weight: Any = None, eps: float = 1e-6) -> str:
    return first_refusal(norm_operand(x, weight, "weight"), no_autocast(x), number(eps))


def _rms_norm(x: Tensor, weight: Any = None, eps: float = 1e-6) -> Any:
    sizes = x.shape[-1:]
    return _PLAIN_RMS_NORM(x, sizes, eps, False) if weight is None else _RMS_NORM(x, weight, sizes, eps, False)


def _layer_norm_refusal(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    needed = bias is not None
    return first_refusal(
        norm_operand(x, weight, "weight", needed), norm_operand(x, bias, "bias"), no_autocast(x), number(eps)
    )


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    sizes = x.shape[-1:]
    if weight is None:
        return _PLAIN_LAYER_NORM(x, sizes, eps, False)
    # apex has no layer norm with a weight and without a bias.
    return _LAYER_NORM(x, weight, torch.zeros_like(weight) if bias is None else bias, sizes, eps, False)


def _cross_entropy_refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    return row_loss_refusal(logits, target, dim, weight)


def _cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, flat = as_rows(logits, target, dim)
    counts = flat != torch_ignore_index(ignore_index)
    to_float = rows.dtype is torch.float16  # its losses, and so the gradient it receives, are then float32
    # Ignored targets are out of range for apex. They count as class 0, and their losses are set to 0 below.
    losses = _CROSS_ENTROPY(rows, flat.where(counts, 0), label_smoothing, _NO_CLASS, to_float)
    return reduce_losses(with_contiguous_gradient(losses).where(counts, 0.0), rows, target, ignore_index, reduction)


def _mlp_refusal(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    rows = x.numel() // max(x.shape[-1], 1)
    return first_refusal(
        "" if activation == "gelu_tanh" else "It supports the activation gelu_tanh only.",
        "" if up_bias is not None and down_bias is not None else "It needs both biases.",
        no_dropout(dropout_p, training),
        one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        multiples_of((rows, *up_weight.shape, *down_weight.shape), 8),
        autocast_dtype(x),
    )


def _mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    operands = (x.reshape(-1, x.shape[-1]), up_weight, up_bias, down_weight, down_bias)
    result = with_contiguous_gradient(_MLP(*(t.contiguous() for t in operands if t is not None)))
    return result.view(*x.shape[:-1], result.shape[-1])


_ITS_OWN = "apex's backward kernel."
PROVIDERS = (
    Provider(
        "rms_norm", "apex", APEX_NORMS, twice_differentiable("rms_norm", _rms_norm),
        "apex's FusedRMSNorm.", _ITS_OWN, _rms_norm_refusal, devices=("cuda",),
    ),
    Provider(
        "layer_norm", "apex", APEX_NORMS, twice_differentiable("layer_norm", _layer_norm),
        "apex's FusedLayerNorm.", _ITS_OWN, _layer_norm_refusal, devices=("cuda",),
    ),
    Provider(
        "cross_entropy", "apex", APEX_LOSSES, once_differentiable("apex", _cross_entropy),
        "apex's xentropy.", _ITS_OWN, _cross_entropy_refusal, devices=("cuda",), dtypes=(torch.float32, torch.float16),
    ),
    Provider(
        "mlp", "apex", APEX_DENSE, twice_differentiable("mlp", _mlp),
        "apex's FusedDenseGeluDense.", _ITS_OWN, _mlp_refusal, devices=("cuda",),
    ),
)  # fmt: skip
