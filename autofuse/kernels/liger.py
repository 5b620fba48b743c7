"""Liger-Kernel: Triton kernels, called through its autograd functions.

Several of its kernels overwrite their inputs with gradients (`dY` with in_place=True, gate and up, logits, query and
key). Such operands are copied here. This file follows version 0.8.5. A different signature in another version is found
at the first call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.loss_arguments import (
    as_rows,
    nan_if_no_row_counts,
    row_loss_refusal,
    torch_ignore_index,
    with_saved_gradients,
)
from autofuse.kernels.package_functions import PackageFunction, once_differentiable, twice_differentiable
from autofuse.kernels.packages import LIGER
from autofuse.kernels.provider import Check, Provider
from autofuse.kernels.requirements import (
    autocast_dtype,
    autocasts,
    first_refusal,
    index_targets,
    must_be_none,
    no_autocast,
    no_dropout,
    norm_operand,
    not_captured,
    number,
    one_dtype,
    same_shape_and_dtype,
    width_at_most,
)
from autofuse.kernels.rotary_arguments import rotary_refusal, rotate

_WIDEST = 65536  # columns; one program holds a whole row
_NORM = ("X", "W", "eps", "offset", "casting_mode", "in_place")
_RMS_NORM = PackageFunction("liger_kernel.ops.rms_norm", "LigerRMSNormFunction", _NORM)
_LAYER_NORM = PackageFunction("liger_kernel.ops.layer_norm", "LigerLayerNormFunction", ("X", "W", "B", "eps"))
_ADD_NORM = PackageFunction(
    "liger_kernel.ops.fused_add_rms_norm", "LigerFusedAddRMSNormFunction", ("X", "R", *_NORM[1:])
)
_SWIGLU = PackageFunction("liger_kernel.ops.swiglu", "swiglu_forward", ("a", "b"))
_SWIGLU_BACKWARD = PackageFunction("liger_kernel.ops.swiglu", "swiglu_backward", ("a", "b", "dc"))
_SWIGLU_HALVES = PackageFunction("liger_kernel.ops.swiglu", "LigerFusedGateUpSiLUMulFunction", ("y", "in_place"))
_GEGLU = PackageFunction("liger_kernel.ops.geglu", "geglu_forward", ("a", "b"))
_GEGLU_BACKWARD = PackageFunction("liger_kernel.ops.geglu", "geglu_backward", ("a", "b", "dc"))
_ROPE = PackageFunction("liger_kernel.ops.rope", "LigerRopeFunction", ("q", "k", "cos", "sin"))
_SOFTMAX = PackageFunction("liger_kernel.ops.softmax", "LigerSoftmaxFunction", ("input_",))
_LOSS_OPTIONS = ("ignore_index", "lse_square_scale", "label_smoothing", "reduction")
_CROSS_ENTROPY = PackageFunction(
    "liger_kernel.ops.cross_entropy", "LigerCrossEntropyFunction", ("_input", "target", "weight", *_LOSS_OPTIONS)
)
_LINEAR_CROSS_ENTROPY = PackageFunction(
    "liger_kernel.ops.fused_linear_cross_entropy",
    "LigerFusedLinearCrossEntropyFunction",
    ("_input", "weight", "target", "bias", "ce_weight", *_LOSS_OPTIONS, "softcap", "return_z_loss", "accum_dtype"),
)


# Norms. The casting mode "gemma" rounds once, as torch does. "llama" also rounds before the weight.


def _norm_refusal(x: Tensor, weight: Any, bias: Any, eps: object) -> str:
    return first_refusal(
        norm_operand(x, weight, "weight", needed=True),
        norm_operand(x, bias, "bias"),
        width_at_most(x, _WIDEST),
        no_autocast(x),
        number(eps),
    )


def _rms_norm_refusal(x: Tensor, weight: Any = None, eps: float = 1e-6) -> str:
    return _norm_refusal(x, weight, None, eps)


def _rms_norm(x: Tensor, weight: Any = None, eps: float = 1e-6) -> Any:
    return _RMS_NORM(x, weight, eps, 0.0, "gemma", False)


def _layer_norm_refusal(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    return _norm_refusal(x, weight, bias, eps)


def _layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return _LAYER_NORM(x, weight, torch.zeros_like(weight) if bias is None else bias, eps)


def _dropout_add_norm_refusal(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> str:  # fmt: skip
    return first_refusal(
        "" if norm == "rms" else "It fuses a residual with RMS norm only.",
        no_dropout(dropout_p, training),
        must_be_none(bias, "a bias"),
        same_shape_and_dtype(x, residual, "x and residual"),
        "It stores the residual in x's dtype." if residual_in_fp32 and x.dtype is not torch.float32 else "",
        _norm_refusal(x, weight, None, eps),
    )


def _dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, dropout_p: float = 0.0,
    training: bool = False, norm: str = "layer", prenorm: bool = False, residual_in_fp32: bool = False,
) -> Any:  # fmt: skip
    normed, total = _ADD_NORM(x, residual, weight, eps, 0.0, "gemma", False)
    return (total, normed) if prenorm else normed


# Gated activations. Liger's GELU is the tanh approximation.

_GATES = {"silu": (_SWIGLU, _SWIGLU_BACKWARD), "gelu_tanh": (_GEGLU, _GEGLU_BACKWARD)}


def _gated_product_refusal(gate: Tensor, up: Tensor, *, activation: Any = "silu") -> str:
    return first_refusal(
        _activation_refusal(activation), same_shape_and_dtype(gate, up, "gate and up"), width_at_most(gate, _WIDEST)
    )


def _activation_refusal(activation: Any) -> str:
    known = isinstance(activation, str) and activation in _GATES
    return "" if known else "It supports the activations silu and gelu_tanh."


def _gated_product(gate: Tensor, up: Tensor, *, activation: Any = "silu") -> Any:
    return _Gated.apply(activation, gate, up)  # type: ignore[no-untyped-call]


def _gated_activation_refusal(x: Tensor, *, activation: Any = "silu", gate_first: bool = True) -> str:
    return first_refusal(
        _activation_refusal(activation), "" if x.shape[-1] % 2 == 0 else "It needs an even last dimension."
    )


def _gated_activation(x: Tensor, *, activation: Any = "silu", gate_first: bool = True) -> Any:
    if activation == "silu" and gate_first:
        halves = x.reshape(-1, x.shape[-1])  # the function returns its gradient in two dimensions
        return _SWIGLU_HALVES(halves, False).reshape(*x.shape[:-1], x.shape[-1] // 2)
    first_half, second_half = x.chunk(2, dim=-1)
    gate, up = (first_half, second_half) if gate_first else (second_half, first_half)
    return _gated_product(gate, up, activation=activation)


class _Gated(torch.autograd.Function):
    """Liger's kernels forward and backward. The backward kernel overwrites copies of gate and up."""

    @staticmethod
    def forward(ctx: Any, activation: str, gate: Tensor, up: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(gate, up)
        result: Tensor = _GATES[activation][0](gate.contiguous(), up.contiguous())[2]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        gate, up = (t.clone(memory_format=torch.contiguous_format) for t in ctx.saved_tensors)
        gate_gradient, up_gradient = _GATES[ctx.activation][1](gate, up, gradient.contiguous())
        return None, gate_gradient, up_gradient


# Rotary embeddings. The kernel rotates a query and a key in place. So it gets a copy, and an empty key with one head.


def _rotary_refusal(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> str:
    return first_refusal(
        "It rotates halves, not neighbouring pairs." if interleaved else "", rotary_refusal(x, cos, sin)
    )


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return rotate(_rotate, x, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    query = x.clone(memory_format=torch.contiguous_format).transpose(1, 2)
    key = x.new_empty(x.shape[0], x.shape[1], 1, x.shape[3]).transpose(1, 2)
    angles = (torch.cat((t, t), -1).unsqueeze(0) for t in (cos, sin))
    result: Tensor = _ROPE(query, key, *angles)[0]
    return result.transpose(1, 2)


# Softmax and losses.


def _masked_softmax_refusal(
    scores: Tensor, mask: Tensor | None = None, *, scale: Any = 1.0, fill: float | None = None
) -> str:
    return first_refusal(must_be_none(mask, "a mask"), width_at_most(scores, _WIDEST))


def _masked_softmax(scores: Tensor, mask: Tensor | None = None, *, scale: Any = 1.0, fill: float | None = None) -> Any:
    scaled = scores if isinstance(scale, float) and scale == 1.0 else (scores * scale).to(scores.dtype)
    return _SOFTMAX(scaled.contiguous())


def _cross_entropy_refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    return first_refusal(row_loss_refusal(logits, target, dim, weight), not_captured(logits))


def _cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, flat = as_rows(logits, target, dim)

    def loss_of(rows: Tensor) -> Tensor:
        copied = rows.clone(memory_format=torch.contiguous_format)  # the kernel writes the gradient into it
        loss: Tensor = _CROSS_ENTROPY(
            copied, flat, None, torch_ignore_index(ignore_index), 0.0, label_smoothing, reduction
        )[0]
        return loss

    if reduction == "none":
        return loss_of(rows).reshape(target.shape)
    loss = with_saved_gradients(loss_of, rows)
    return nan_if_no_row_counts(loss, flat, ignore_index) if reduction == "mean" else loss


def _linear_cross_entropy_refusal(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
) -> str:  # fmt: skip
    others = [t for t in (weight, bias) if t is not None]
    return first_refusal(
        "It supports the reductions mean and sum only." if reduction == "none" else "",
        one_dtype(x, *others),
        ""
        if x.requires_grad or not any(t.requires_grad for t in others)
        else "It needs an x that requires a gradient.",
        "It takes class indices, not probabilities." if target.is_floating_point() else index_targets(target),
        autocast_dtype(x),
        not_captured(x),
    )


def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", in_float32: bool = False,
) -> Tensor:  # fmt: skip
    flat = target.reshape(-1).contiguous()

    def loss_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        options = (torch_ignore_index(ignore_index), 0.0, label_smoothing, reduction, None, False, torch.float32)
        loss: Tensor = _LINEAR_CROSS_ENTROPY(x, weight, flat, bias, None, *options)[0]
        return loss

    loss = with_saved_gradients(loss_of, x.reshape(-1, x.shape[-1]), weight, bias)
    if reduction == "mean":
        loss = nan_if_no_row_counts(loss, flat, ignore_index)
    return loss if in_float32 or autocasts(x) else loss.to(x.dtype)


_ITS_OWN = "Liger's backward kernel."


def _provider(operation: str, run: Any, check: Check, summary: str, gradient: str = _ITS_OWN, **more: Any) -> Provider:
    return Provider(operation, "liger", LIGER, run, summary, gradient, check, devices=("cuda",), **more)


def _once_differentiable(run: Any) -> Any:
    return once_differentiable("liger", run)


PROVIDERS = (
    _provider(
        "rms_norm", twice_differentiable("rms_norm", _rms_norm), _rms_norm_refusal,
        "Liger's RMS norm, computed in float32 and rounded once.",
    ),
    _provider(
        "layer_norm", twice_differentiable("layer_norm", _layer_norm), _layer_norm_refusal, "Liger's layer norm.",
    ),
    _provider(
        "dropout_add_norm", _once_differentiable(_dropout_add_norm), _dropout_add_norm_refusal,
        "Liger's fused add and RMS norm.",
    ),
    _provider(
        "gated_product", twice_differentiable("gated_product", _gated_product), _gated_product_refusal,
        "Liger's SwiGLU or GeGLU.", "Liger's backward kernel, on copies: it overwrites its inputs.",
    ),
    _provider(
        "gated_activation", twice_differentiable("gated_activation", _gated_activation), _gated_activation_refusal,
        "Liger's SwiGLU of two halves, or GeGLU.",
    ),
    _provider(
        "rotary", _rotary, _rotary_refusal, "Liger's RoPE, on a copy: it rotates in place.",
        "The same kernel with the inverse rotation.",
    ),
    _provider(
        "masked_softmax", _once_differentiable(_masked_softmax), _masked_softmax_refusal, "Liger's softmax.",
        dtypes=(torch.float32,),  # its backward pass multiplies in the dtype of the scores, and in float16 sums in it
    ),
    _provider(
        "cross_entropy", _once_differentiable(_cross_entropy), _cross_entropy_refusal,
        "Liger's cross entropy, on a copy: it writes the gradient into the logits.",
        "Computed by Liger in the forward pass, scaled in the backward.",
    ),
    _provider(
        "linear_cross_entropy", _once_differentiable(_linear_cross_entropy), _linear_cross_entropy_refusal,
        "Liger's linear and cross entropy in blocks of rows; gradients of weights are summed in float32.",
        "Computed by Liger in the forward pass, scaled in the backward.",
    ),
)  # fmt: skip
