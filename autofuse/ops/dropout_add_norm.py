"""Dropout, residual add and a norm: the step between two blocks of a prenorm or postnorm transformer."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from autofuse.kernels.dropout_bits import draw_seed
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.ops.affine import Affine, add_bias, fits_into
from autofuse.ops.layer_norm import layer_norm
from autofuse.ops.norm_operators import norm_dtype, norm_refusal, run_norm
from autofuse.ops.rms_norm import rms_norm
from autofuse.torch_private import functional as F

Result = Tensor | tuple[Tensor, Tensor]


@overload
def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: Literal[False] = False,
    residual_in_fp32: bool = False,
) -> Tensor: ...  # fmt: skip


@overload
def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: Literal[True],
    residual_in_fp32: bool = False,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> Result:  # fmt: skip
    """norm(residual + dropout(x)), the step between two blocks of a transformer.

    Args:
        x: shape (..., C).
        residual: shape (..., C); x and residual broadcast against each other.
        weight: as in `layer_norm`.
        bias: as in `layer_norm`. For an RMS norm it is added after the norm.
        eps: is added to the variance, or to the mean square.
        dropout_p: the probability with which entries of x are dropped while `training`.
        training: whether dropout is active.
        norm: "layer" or "rms".
        prenorm: whether to return the sum too.
        residual_in_fp32: the sum is in fp32 (or fp64), and the norm in x's dtype. A deep residual stream then loses no
            precision.

    Returns:
        The norm, in the dtype of `layer_norm`. With `prenorm` the pair (sum, norm); the sum has the dtype to which x
        and residual promote.

    Raises:
        ValueError: if `norm` is unknown.
    """
    if norm not in ("layer", "rms"):
        raise ValueError(f'dropout_add_norm got the unknown norm {norm!r}. Use "layer" or "rms".')
    return _OP(  # type: ignore[no-any-return]
        x, residual, weight, bias, eps=eps, dropout_p=dropout_p, training=training, norm=norm, prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
    )  # fmt: skip


def _by_torch(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> Result:  # fmt: skip
    """Each step by itself. The norm's own operation chooses the kernel of the norm."""
    if residual_in_fp32:
        residual = residual.to(torch.promote_types(residual.dtype, torch.float32))
    total = residual + (F.dropout(x, dropout_p) if training and dropout_p else x)
    normed = layer_norm(total, weight, bias, eps) if norm == "layer" else add_bias(rms_norm(total, weight, eps), bias)
    normed = normed.to(x.dtype) if residual_in_fp32 else normed
    return (total, normed) if prenorm else normed


def _by_kernel(
    kernel: str, x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> Result:  # fmt: skip
    if residual_in_fp32:
        sum_dtype, normed = torch.float32, x.dtype
    else:
        sum_dtype = torch.promote_types(x.dtype, residual.dtype)
        normed = norm_dtype(f"{norm}_norm", x, residual, weight, bias)
    p = dropout_p if training else 0.0
    seed = draw_seed(x.device) if p else None  # without dropout the generator must not advance
    result, total = run_norm(
        kernel, x, residual.expand_as(x), weight, bias, seed, p, eps, norm == "layer", normed, sum_dtype
    )
    return (total, result) if prenorm else result


def _refusal(
    x: Tensor, residual: Tensor | float, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> str:  # fmt: skip
    if not isinstance(residual, Tensor) or residual.layout is not torch.strided or residual.device != x.device:
        return "It needs a residual that is a dense tensor on x's device."
    if residual.dtype not in HALVES_AND_SINGLE:
        return "It needs a residual in fp32, bf16 or fp16."
    if not 0.0 <= dropout_p < 1.0:
        return "It needs a dropout probability of at least 0 and below 1."
    if residual.shape != x.shape and not (training and dropout_p and fits_into(residual, x)):
        return "It needs a residual of x's shape: torch's addition reads a smaller residual only once."
    return norm_refusal(x, weight, bias, eps)


def _sizes(
    x: Tensor, *operands: object, norm: str = "layer", dropout_p: float = 0.0, training: bool = False, **rest: object
) -> tuple[int, ...]:  # fmt: skip
    """The key of a measurement: elements, width, dropout, and which norm."""
    return x.numel().bit_length(), x.shape[-1], training and dropout_p > 0, norm == "rms"


def _refusal_on_cpu(
    x: Tensor, residual: Tensor | float, weight: Affine = None, bias: Affine = None, *, norm: str = "layer",
    dropout_p: float = 0.0, training: bool = False, **rest: Any,
) -> str:  # fmt: skip
    """As `_refusal`; also declines calls for which torch's addition and layer norm are as fast.

    Those take 0.6 to 1.0 of a loop's time in fp32.
    """
    if not (training and dropout_p):
        if x.numel() < _LEAST:
            return f"Without dropout it needs {_LEAST} elements or more: below, a call costs what it saves."
        if norm == "layer" and x.dtype is torch.float32:
            return "It computes layer norms in fp32 only with dropout: otherwise torch's functions are as fast."
    return _refusal(x, residual, weight, bias, norm=norm, dropout_p=dropout_p, training=training, **rest)


_LEAST = 2**17
_ON_GPU = GpuThreshold(extra=0, saved=4)  # one call in place of two to four
_OP = Operation(
    "dropout_add_norm",
    (
        Provider(
            "dropout_add_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=_refusal,
            devices=("cuda",), default=True,
            summary="Our Triton kernels: dropout, sum and norm in one pass; a seed determines the dropout.",
            gradient="One kernel for x, residual, weight and bias (two above 8192 columns); dropout is drawn again.",
        ),
        Provider(
            "dropout_add_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refusal_on_cpu,
            devices=("cpu",), default=True,
            summary="Dropout, sum and norm in one loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop, which draws dropout again; the sum and two numbers for each row are saved.",
        ),
        Provider(
            "dropout_add_norm", "torch", TORCH, _by_torch, default=True,
            summary="torch's dropout and addition, and then the norm, by the norm's own provider.",
            gradient="torch's own.",
        ),
    ),
    sizes=_sizes,
    on_gpu=_ON_GPU,
)  # fmt: skip
