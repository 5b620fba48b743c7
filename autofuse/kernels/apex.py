"""NVIDIA apex: norms, cross entropy, Linear-GELU-Linear and Adam in its CUDA extensions.

Knows how each is called and what it does not say. Its cross entropy takes class 0 for padding unless told otherwise,
reads outside of the logits for a target of -100, changes the gradient it is given, and fails backward for bfloat16. Its
fused dense layers read operands as contiguous and forget to look whether the product was computed, so only sizes that
cuBLASLt takes are passed. Its functions cast under autocast to where torch computes in float32: the autograd functions
behind them are called. The repository at its state of July 2026 was read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.loss_arguments import as_rows, ignored, reduced, row_wise
from autofuse.kernels.package_functions import (
    PackageFunction,
    once_differentiable,
    twice_differentiable,
    with_whole_gradient,
)
from autofuse.kernels.packages import APEX_DENSE, APEX_LOSSES, APEX_NORMS
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import a_number, affine, divides, first, lowered, no_autocast, no_dropout, one_dtype

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
_NO_CLASS = -1


def _rms_norm_misfit(x: Tensor, weight: Any = None, eps: float = 1e-6) -> str:
    return first(affine(x, weight, "weight"), no_autocast(x), a_number(eps))


def _rms_norm(x: Tensor, weight: Any = None, eps: float = 1e-6) -> Any:
    sizes = x.shape[-1:]
    return _PLAIN_RMS_NORM(x, sizes, eps, False) if weight is None else _RMS_NORM(x, weight, sizes, eps, False)


def _layer_norm_misfit(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    needed = bias is not None
    return first(affine(x, weight, "weight", needed), affine(x, bias, "bias"), no_autocast(x), a_number(eps))


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    sizes = x.shape[-1:]
    if weight is None:
        return _PLAIN_LAYER_NORM(x, sizes, eps, False)
    return _LAYER_NORM(x, weight, torch.zeros_like(weight) if bias is None else bias, sizes, eps, False)


def _cross_entropy_misfit(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    return row_wise(logits, target, dim, weight)


def _cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, flat = as_rows(logits, target, dim)
    counted = flat != ignored(ignore_index)
    to_float = rows.dtype is torch.float16  # its losses are float32, and so is the gradient it then has to take
    losses = _CROSS_ENTROPY(rows, flat.where(counted, 0), label_smoothing, _NO_CLASS, to_float)
    return reduced(with_whole_gradient(losses).where(counted, 0.0), rows, target, ignore_index, reduction)


def _mlp_misfit(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    rows = x.numel() // max(x.shape[-1], 1)
    return first(
        "" if activation == "gelu_tanh" else "Its GELU is the tanh approximation: it takes gelu_tanh only.",
        "" if up_bias is not None and down_bias is not None else "It wants both biases.",
        no_dropout(dropout_p, training),
        one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        divides((rows, *up_weight.shape, *down_weight.shape), 8),
        lowered(x),
    )


def _mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    operands = (x.reshape(-1, x.shape[-1]), up_weight, up_bias, down_weight, down_bias)
    made = with_whole_gradient(_MLP(*(t.contiguous() for t in operands if t is not None)))
    return made.view(*x.shape[:-1], made.shape[-1])


_ITS_OWN = "apex's backward kernel."
PROVIDERS = (
    Provider(
        "rms_norm", "apex", APEX_NORMS, twice_differentiable("rms_norm", _rms_norm),
        "apex's FusedRMSNorm.", _ITS_OWN, _rms_norm_misfit, devices=("cuda",),
    ),
    Provider(
        "layer_norm", "apex", APEX_NORMS, twice_differentiable("layer_norm", _layer_norm),
        "apex's FusedLayerNorm.", _ITS_OWN, _layer_norm_misfit, devices=("cuda",),
    ),
    Provider(
        "cross_entropy", "apex", APEX_LOSSES, once_differentiable("apex", _cross_entropy),
        "apex's xentropy.", _ITS_OWN, _cross_entropy_misfit, devices=("cuda",), dtypes=(torch.float32, torch.float16),
    ),
    Provider(
        "mlp", "apex", APEX_DENSE, twice_differentiable("mlp", _mlp),
        "apex's FusedDenseGeluDense.", _ITS_OWN, _mlp_misfit, devices=("cuda",),
    ),
)  # fmt: skip
