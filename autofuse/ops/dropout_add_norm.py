"""Dropout, residual add and a norm: the step between two blocks of a transformer, pre-norm and post-norm.

Knows what is added and normed, and in which dtypes; must not know how a model spells it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.dropout_bits import drawn_seed
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.ops.affine import Affine, add_bias, fits_into
from autofuse.ops.layer_norm import layer_norm
from autofuse.ops.norm_operators import dtype_of, normed_by, refused
from autofuse.ops.rms_norm import rms_norm

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

    Shapes: x and residual (..., C), broadcast against each other; weight and bias as in `layer_norm`. Entries of x are
    dropped with probability `dropout_p` while `training`. `norm` is "layer" or "rms" (where a bias is added after it).
    With `prenorm` the sum lives on: the result is the pair (sum, normed).
    The sum has the dtype to which x and residual promote, the norm that of `layer_norm`. With `residual_in_fp32` the
    sum is in fp32 (or fp64) whatever its summands are, so that a deep stream of residuals loses nothing, and the norm
    has x's dtype.
    Raises ValueError for another `norm`.
    """
    if norm not in ("layer", "rms"):
        raise ValueError(f'dropout_add_norm was asked for a norm called {norm!r}. Use "layer" or "rms".')
    return _OP(  # type: ignore[no-any-return]
        x, residual, weight, bias, eps=eps, dropout_p=dropout_p, training=training, norm=norm, prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
    )  # fmt: skip


def _by_torch(
    x: Tensor, residual: Tensor, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> Result:  # fmt: skip
    """Each step by itself; which kernel norms is chosen by that operation."""
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
        summed, normed = torch.float32, x.dtype
    else:
        summed = torch.promote_types(x.dtype, residual.dtype)
        normed = dtype_of(f"{norm}_norm", x, residual, weight, bias)
    p = dropout_p if training else 0.0
    seed = drawn_seed(x.device) if p else None
    out, total = normed_by(
        kernel, x, residual.expand_as(x), weight, bias, seed, p, eps, norm == "layer", normed, summed
    )
    return (total, out) if prenorm else out


def _refused(
    x: Tensor, residual: Tensor | float, weight: Affine = None, bias: Affine = None, *, eps: float = 1e-5,
    dropout_p: float = 0.0, training: bool = False, norm: str = "layer", prenorm: bool = False,
    residual_in_fp32: bool = False,
) -> str:  # fmt: skip
    if not isinstance(residual, Tensor) or residual.layout is not torch.strided or residual.device != x.device:
        return "It takes a residual that is a dense tensor on x's device."
    if residual.dtype not in HALVES_AND_SINGLE:
        return "It takes a residual of fp32, bf16 or fp16."
    if not 0.0 <= dropout_p < 1.0:
        return "It takes a probability of dropping from 0 to less than 1."
    if residual.shape != x.shape and not (training and dropout_p and fits_into(residual, x)):
        return "It takes a residual of x's shape: torch's addition reads a smaller one only once."
    return refused(x, weight, bias, eps)


def _sizes(
    x: Tensor, *operands: object, norm: str = "layer", dropout_p: float = 0.0, training: bool = False, **rest: object
) -> tuple[int, ...]:  # fmt: skip
    """Elements, width, and what makes it another computation: dropping, and which norm."""
    return x.numel().bit_length(), x.shape[-1], training and dropout_p > 0, norm == "rms"


def _refused_on_cpu(
    x: Tensor, residual: Tensor | float, weight: Affine = None, bias: Affine = None, *, norm: str = "layer",
    dropout_p: float = 0.0, training: bool = False, **rest: Any,
) -> str:  # fmt: skip
    """As above, and what torch's addition and layer norm do as well: 0.6 to 1.0 of a loop's time in fp32."""
    if not (training and dropout_p):
        if x.numel() < _LEAST:
            return f"It takes {_LEAST} elements or more where nothing is dropped: below, a call costs what it saves."
        if norm == "layer" and x.dtype is torch.float32:
            return "It takes layer norms in fp32 only with dropout: torch's addition and layer norm are as fast."
    return _refused(x, residual, weight, bias, norm=norm, dropout_p=dropout_p, training=training, **rest)


_LEAST = 2**17
_ON_GPU = GpuThreshold(extra=0, saved=4)  # one call in place of two to four
_OP = Operation(
    "dropout_add_norm",
    (
        Provider(
            "dropout_add_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=_refused,
            devices=("cuda",), default=True,
            summary="Our Triton kernels: dropout, sum and norm in one pass, the draws a function of a seed.",
            gradient="One kernel for x, residual, weight and bias (two beyond 8192 columns), which draws anew.",
        ),
        Provider(
            "dropout_add_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refused_on_cpu,
            devices=("cpu",), default=True,
            summary="Dropout, sum and norm in one loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop, which draws anew; what is kept is the sum and two numbers for each row.",
        ),
        Provider(
            "dropout_add_norm", "torch", TORCH, _by_torch, default=True,
            summary="torch's dropout and addition, and then the norm, by whichever provider.",
            gradient="torch's own.",
        ),
    ),
    sizes=_sizes,
    on_gpu=_ON_GPU,
)  # fmt: skip
