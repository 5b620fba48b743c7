"""quack-kernels: norms, softmax, losses, rotary embeddings and Linear-activation-Linear in CuTe DSL.

Its functions assume without a check: two dimensions, a contiguous gradient, and for a fused residual norm that x or a
weight gets a gradient if the residual does. This file follows version 0.6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.loss_arguments import (
    as_rows,
    reduce_losses,
    row_loss_refusal,
    torch_ignore_index,
    with_saved_gradients,
)
from autofuse.kernels.package_functions import (
    PackageFunction,
    once_differentiable,
    twice_differentiable,
    with_contiguous_gradient,
)
from autofuse.kernels.packages import QUACK
from autofuse.kernels.provider import HALVES_AND_SINGLE, Check, Provider
from autofuse.kernels.requirements import (
    HALVES,
    autocast_dtype,
    autocasts,
    capability,
    first_refusal,
    index_targets,
    multiples_of,
    must_be_none,
    no_autocast,
    no_dropout,
    norm_operand,
    number,
    one_dtype,
    summands,
)
from autofuse.kernels.rotary_arguments import rotary_refusal, rotate

_LEAST = (9, 0)
_RMS_NORM = PackageFunction("quack.rmsnorm", "rmsnorm", ("x", "weight", "bias"), ("residual", "eps", "prenorm"))
_LAYER_NORM = PackageFunction(
    "quack.rmsnorm", "layernorm_fwd", ("x", "weight", "bias", "eps", "return_rstd", "return_mean")
)
_LAYER_NORM_BACKWARD = PackageFunction(
    "quack.rmsnorm", "layernorm_bwd", ("x", "weight", "dout", "rstd", "mean", "has_bias")
)
_SOFTMAX = PackageFunction("quack.softmax", "softmax", ("x",))
_CROSS_ENTROPY = PackageFunction("quack.cross_entropy", "cross_entropy", ("x", "target"), ("ignore_index", "reduction"))
_LINEAR_CROSS_ENTROPY = PackageFunction(
    "quack.linear_cross_entropy", "chunked_linear_cross_entropy", ("x", "weight", "target"),
    ("ignore_index", "reduction"),
)  # fmt: skip
_ROTARY = PackageFunction("quack.rotary", "apply_rotary_emb", ("x", "cos", "sin"), ("interleaved",))
_MLP = PackageFunction("quack.mlp", "mlp_func", ("x", "weight1", "weight2", "activation"), ("bias1", "bias2"))
_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {"gelu": "gelu_erf", "gelu_tanh": "gelu_tanh_approx", "relu": "relu", "relu_squared": "relu_sq", "silu": "silu"}
)


# Norms.


def _norm_refusal(x: Tensor, weight: Any, bias: Any, eps: object, needed: bool = False) -> str:
    return first_refusal(
        norm_operand(x, weight, "weight", needed),
        norm_operand(x, bias, "bias"),
        capability(x, _LEAST),
        no_autocast(x),
        number(eps),
    )


def _rms_norm_refusal(x: Tensor, weight: Any = None, eps: float = 1e-6) -> str:
    return _norm_refusal(x, weight, None, eps)


def _rms_norm(x: Tensor, weight: Any = None, eps: float = 1e-6) -> Any:
    return _RMS_NORM(x, weight, None, eps=eps)


def _layer_norm_refusal(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    return _norm_refusal(x, weight, bias, eps, needed=True)


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    affine32 = (weight.float(), None if bias is None else bias.float())  # the kernel needs float32
    return _LayerNorm.apply(rows, *affine32, eps).view(x.shape)  # type: ignore[no-untyped-call]


class _LayerNorm(torch.autograd.Function):
    """quack's kernels forward and backward. quack has no autograd function for them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        x = x.contiguous()
        result: Tensor
        result, rstd, mean = _LAYER_NORM(x, weight, bias, eps, True, True)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight, rstd, mean)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd, mean = ctx.saved_tensors
        gradients = _LAYER_NORM_BACKWARD(x, weight, gradient.contiguous(), rstd, mean, ctx.has_bias)
        return *gradients, None


def _dropout_add_norm_refusal(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> str:  # fmt: skip
    others_get_gradient = any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, bias))
    return first_refusal(
        "" if norm == "rms" else "It fuses a residual with RMS norm only.",
        no_dropout(dropout_p, training),
        summands(x, residual, residual_in_fp32),
        "It computes no gradient for the residual alone." if residual.requires_grad and not others_get_gradient else "",
        _norm_refusal(x, weight, bias, eps),
    )


def _dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> Any:  # fmt: skip
    residual = residual.float() if residual_in_fp32 else residual  # the sum has the residual's dtype
    output = _RMS_NORM(x, weight, bias, residual=residual, eps=eps, prenorm=prenorm)
    return (output[1], output[0]) if prenorm else output


# Softmax, losses, rotary embeddings, Linear-activation-Linear.


def _masked_softmax_refusal(
    scores: Tensor, mask: Tensor | None = None, *, scale: Any = 1.0, fill: float | None = None
) -> str:
    unscaled = isinstance(scale, (int, float)) and scale == 1
    return first_refusal(
        must_be_none(mask, "a mask"),
        "" if unscaled else "It has no scale.",
        capability(scores, _LEAST),
    )


def _masked_softmax(
    scores: Tensor, mask: Tensor | None = None, *, scale: Any = 1.0, fill: float | None = None
) -> Tensor:
    rows = scores.reshape(-1, scores.shape[-1]).contiguous()
    return with_contiguous_gradient(_SOFTMAX(rows)).view(scores.shape)


def _cross_entropy_refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    return first_refusal(
        row_loss_refusal(logits, target, dim, weight),
        "It has no label smoothing." if label_smoothing else "",
        capability(logits, _LEAST),
    )


def _cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, flat = as_rows(logits, target, dim)
    losses = _CROSS_ENTROPY(rows.contiguous(), flat, ignore_index=torch_ignore_index(ignore_index), reduction="none")
    return reduce_losses(with_contiguous_gradient(losses), rows, target, ignore_index, reduction)


def _linear_cross_entropy_refusal(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
) -> str:  # fmt: skip
    return first_refusal(
        "It supports the reductions mean and sum only." if reduction == "none" else "",
        must_be_none(bias, "a bias"),
        "It has no label smoothing." if label_smoothing else "",
        "It takes class indices, not probabilities." if target.is_floating_point() else index_targets(target),
        one_dtype(x, weight),
        multiples_of((*weight.shape, target.numel()), 8),
        capability(x, _LEAST),
        autocast_dtype(x),
    )


def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
) -> Tensor:  # fmt: skip
    flat = target.reshape(-1).contiguous()

    def loss_of(x: Tensor, weight: Tensor) -> Tensor:
        loss: Tensor = _LINEAR_CROSS_ENTROPY(
            x, weight, flat, ignore_index=torch_ignore_index(ignore_index), reduction=reduction
        )
        return loss

    loss = with_saved_gradients(loss_of, x.reshape(-1, x.shape[-1]).contiguous(), weight.contiguous())
    return loss if in_float32 or autocasts(x) else loss.to(x.dtype)


def _rotary_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    width = x.shape[-1]
    return first_refusal(
        rotary_refusal(x, cos, sin),
        "" if width <= 512 and x.stride(-1) == 1 else "It needs a head_dim of at most 512, contiguous in memory.",
        multiples_of((width,), 8),
        capability(x, _LEAST),
    )


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return rotate(_rotate, x, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()  # a gradient may have any strides
    result: Tensor = _ROTARY(x, cos, sin, interleaved=interleaved)
    return result


def _mlp_refusal(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> str:  # fmt: skip
    known = isinstance(activation, str) and activation in _ACTIVATIONS
    return first_refusal(
        "" if known else f"It supports the activations {', '.join(_ACTIVATIONS)}.",
        no_dropout(dropout_p, training),
        one_dtype(x, up_weight, up_bias, down_weight, down_bias),
        multiples_of((*up_weight.shape, *down_weight.shape), 8),
        capability(x, _LEAST),
        autocast_dtype(x),
    )


def _mlp(
    x: Tensor, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor, down_bias: Tensor | None,
    *, activation: Any = "gelu", dropout_p: float = 0.0, training: bool = False,
) -> Any:  # fmt: skip
    return _MLP(x, up_weight, down_weight, _ACTIVATIONS[activation], bias1=up_bias, bias2=down_bias)


def _provider(
    operation: str, run: Any, check: Check, summary: str, gradient: str = "quack's backward kernel.",
    dtypes: tuple[torch.dtype, ...] = HALVES_AND_SINGLE,
) -> Provider:  # fmt: skip
    return Provider(operation, "quack", QUACK, run, summary, gradient, check, devices=("cuda",), dtypes=dtypes)


def _once_differentiable(run: Any) -> Any:
    return once_differentiable("quack", run)


PROVIDERS = (
    _provider("rms_norm", twice_differentiable("rms_norm", _rms_norm), _rms_norm_refusal, "quack's RMS norm."),
    _provider(
        "layer_norm", twice_differentiable("layer_norm", _layer_norm), _layer_norm_refusal,
        "quack's layer norm, with its weights in float32.",
    ),
    _provider(
        "dropout_add_norm", _once_differentiable(_dropout_add_norm), _dropout_add_norm_refusal,
        "quack's fused add and RMS norm.",
    ),
    _provider("masked_softmax", _once_differentiable(_masked_softmax), _masked_softmax_refusal, "quack's softmax."),
    _provider("cross_entropy", _once_differentiable(_cross_entropy), _cross_entropy_refusal, "quack's cross entropy."),
    _provider(
        "linear_cross_entropy", _once_differentiable(_linear_cross_entropy), _linear_cross_entropy_refusal,
        "quack's linear and cross entropy in blocks of rows; the weight's gradient is summed in float32.",
        "Computed by quack in the forward pass, scaled in the backward.", HALVES,
    ),
    _provider(
        "rotary", _rotary, _rotary_refusal, "quack's rotary embedding.", "The same kernel with the inverse rotation.",
    ),
    _provider(
        "mlp", twice_differentiable("mlp", _mlp), _mlp_refusal, "quack's matrix products with a fused activation.",
        dtypes=HALVES,
    ),
)  # fmt: skip
