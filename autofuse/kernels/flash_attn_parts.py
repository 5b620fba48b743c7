"""flash-attn's other kernels: norms, rotary embedding, SwiGLU, cross entropy, Linear-activation-Linear.

Its fused MLP silently falls back to unfused code for some dtypes, sizes and devices; the checks here refuse those. Its
bias_gelu is not a provider: it is scripted code that torch runs operation by operation, in the dtype of its operands.
This file follows version 2.8.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.loss_arguments import as_rows, reduce_losses, row_loss_refusal, torch_ignore_index
from autofuse.kernels.package_functions import PackageFunction, once_differentiable, twice_differentiable
from autofuse.kernels.packages import (
    FLASH_ATTN_ACTIVATIONS,
    FLASH_ATTN_DENSE,
    FLASH_ATTN_LOSSES,
    FLASH_ATTN_NORMS,
    FLASH_ATTN_ROTARY,
    Package,
)
from autofuse.kernels.provider import HALVES_AND_SINGLE, Check, Provider
from autofuse.kernels.requirements import (
    HALVES,
    autocast_dtype,
    capability,
    device_capability,
    first_refusal,
    multiples_of,
    no_autocast,
    no_dropout,
    norm_operand,
    number,
    one_dtype,
    same_shape_and_dtype,
    summands,
    width_at_most,
)
from autofuse.kernels.rotary_arguments import rotary_refusal, rotate

_LEAST = (8, 0)
_NORM = PackageFunction(
    "flash_attn.ops.triton.layer_norm", "layer_norm_fn", ("x", "weight", "bias"),
    ("residual", "eps", "dropout_p", "prenorm", "is_rms_norm"),
)  # fmt: skip
_ROTARY = PackageFunction("flash_attn.layers.rotary", "apply_rotary_emb", ("x", "cos", "sin"), ("interleaved",))
_SWIGLU = PackageFunction("flash_attn.ops.activations", "SwiGLUFunction", ("x", "y"))
_CROSS_ENTROPY = PackageFunction(
    "flash_attn.ops.triton.cross_entropy", "cross_entropy_loss", ("logits", "labels"),
    ("label_smoothing", "ignore_index"),
)  # fmt: skip
_MLP = PackageFunction(
    "flash_attn.ops.fused_dense", "fused_mlp_func", ("x", "weight1", "weight2"), ("bias1", "bias2", "activation")
)
_ACTIVATIONS: Mapping[str, str] = MappingProxyType({"gelu_tanh": "gelu_approx", "relu": "relu"})


# Norms, with dropout and residual.


def _norm_refusal(x: Tensor, weight: Any, bias: Any, eps: object) -> str:
    return first_refusal(
        norm_operand(x, weight, "weight", needed=True), norm_operand(x, bias, "bias"), no_autocast(x),
        capability(x, _LEAST), width_at_most(x, 65536 // x.element_size()), number(eps),
    )  # fmt: skip


def _rms_norm_refusal(x: Tensor, weight: Any = None, eps: float = 1e-6) -> str:
    return _norm_refusal(x, weight, None, eps)


def _rms_norm(x: Tensor, weight: Any = None, eps: float = 1e-6) -> Any:
    return _NORM(x, weight, None, residual=None, eps=eps, dropout_p=0.0, prenorm=False, is_rms_norm=True)


def _layer_norm_refusal(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    return _norm_refusal(x, weight, bias, eps)


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return _NORM(x, weight, bias, residual=None, eps=eps, dropout_p=0.0, prenorm=False, is_rms_norm=False)


def _dropout_add_norm_refusal(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> str:  # fmt: skip
    return first_refusal(
        summands(x, residual, residual_in_fp32),
        "" if not training or dropout_p < 1 else "It needs a dropout probability below 1.",
        _norm_refusal(x, weight, bias, eps),
    )


def _dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> Any:  # fmt: skip
    residual = residual.float() if residual_in_fp32 else residual  # the sum has the residual's dtype
    output = _NORM(
        x, weight, bias, residual=residual, eps=eps, dropout_p=dropout_p if training else 0.0, prenorm=prenorm,
        is_rms_norm=norm == "rms",
    )  # fmt: skip
    return (output[1], output[0]) if prenorm else output


# Elementwise, losses, Linear-activation-Linear.


def _rotary_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    return first_refusal(rotary_refusal(x, cos, sin), width_at_most(x, 256), capability(x, _LEAST))


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return rotate(_rotate, x, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    result: Tensor = _ROTARY(x, cos, sin, interleaved=interleaved)
    return result


def _gated_product_refusal(gate: Tensor, up: Tensor, *, activation: Any = "silu") -> str:
    return first_refusal(
        "" if activation == "silu" else "It supports the activation silu.",
        same_shape_and_dtype(gate, up, "gate and up"),
    )


def _gated_product(gate: Tensor, up: Tensor, *, activation: Any = "silu") -> Any:
    return _SWIGLU(gate, up)


def _cross_entropy_refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    return first_refusal(row_loss_refusal(logits, target, dim, weight), capability(logits, _LEAST))


def _cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, flat = as_rows(logits, target, dim)
    losses = _CROSS_ENTROPY(rows, flat, label_smoothing=label_smoothing, ignore_index=torch_ignore_index(ignore_index))[
        0
    ]
    return reduce_losses(losses, rows, target, ignore_index, reduction)


def _mlp_refusal(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    known = isinstance(activation, str) and activation in _ACTIVATIONS
    found = device_capability(x)
    return first_refusal(
        "" if known else "It supports the activations gelu_tanh and relu.",
        no_dropout(dropout_p, training),
        one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        multiples_of((*up_weight.shape, *down_weight.shape), 128 if activation == "relu" else 8),
        capability(x, _LEAST),
        "From compute capability 9.0 on it runs unfused." if found is not None and found >= (9, 0) else "",
        autocast_dtype(x),
    )


def _mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    return _MLP(x, up_weight, down_weight, bias1=up_bias, bias2=down_bias, activation=_ACTIVATIONS[activation])


_ITS_OWN = "flash-attn's own backward pass."


def _provider(
    operation: str, package: Package, run: Any, check: Check, summary: str, gradient: str = _ITS_OWN,
    dtypes: tuple[torch.dtype, ...] = HALVES_AND_SINGLE,
) -> Provider:  # fmt: skip
    return Provider(operation, "flash-attn", package, run, summary, gradient, check, devices=("cuda",), dtypes=dtypes)


def _once_differentiable(run: Any) -> Any:
    return once_differentiable("flash-attn", run)


PROVIDERS = (
    _provider(
        "rms_norm", FLASH_ATTN_NORMS, twice_differentiable("rms_norm", _rms_norm), _rms_norm_refusal,
        "flash-attn's RMS norm.",
    ),
    _provider(
        "layer_norm", FLASH_ATTN_NORMS, twice_differentiable("layer_norm", _layer_norm), _layer_norm_refusal,
        "flash-attn's layer norm.",
    ),
    _provider(
        "dropout_add_norm", FLASH_ATTN_NORMS, _once_differentiable(_dropout_add_norm), _dropout_add_norm_refusal,
        "flash-attn's dropout, add and norm.",
    ),
    _provider(
        "rotary", FLASH_ATTN_ROTARY, _rotary, _rotary_refusal, "flash-attn's rotary embedding.",
        "The same kernel with the inverse rotation.",
    ),
    _provider(
        "gated_product", FLASH_ATTN_ACTIVATIONS, twice_differentiable("gated_product", _gated_product),
        _gated_product_refusal, "flash-attn's SwiGLU.",
    ),
    _provider(
        "cross_entropy", FLASH_ATTN_LOSSES, _once_differentiable(_cross_entropy), _cross_entropy_refusal,
        "flash-attn's cross entropy.",
    ),
    _provider(
        "mlp", FLASH_ATTN_DENSE, twice_differentiable("mlp", _mlp), _mlp_refusal, "flash-attn's fused MLP.",
        dtypes=HALVES,
    ),
)  # fmt: skip
