"""RMS norm of the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.affine import Affine, apply_affine, as_kernel_operand, is_usual
from autofuse.ops.norm_operators import norm_dtype, norm_refusal, prepare_norm, run_norm
from autofuse.torch_private import FUSED_RMS_NORM_BACKWARD, forward_ad
from autofuse.torch_private import functional as F


def rms_norm(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight, with the mean over the last dimension.

    Args:
        x: shape (..., C).
        weight: usually (C,); any shape that broadcasts against x.
        eps: is added to the mean square.

    Returns:
        A tensor of shape (..., C) in the dtype to which x and weight promote. The mean is computed in fp32 or fp64.

    Source: Zhang & Sennrich, arXiv:1910.07467.
    """
    return _OP(x, weight, eps)  # type: ignore[no-any-return]


def has_fused_kernel() -> bool:
    """Whether this torch computes an RMS norm on CUDA with one kernel, forward and backward."""
    return bool(FUSED_RMS_NORM_BACKWARD != "missing")


def _by_torch(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    if forward_ad._current_level >= 0:  # torch's formula adds eps in place, which torch.func.linearize cannot replay
        return _by_formula(x, weight, eps)
    sizes = x.shape[-1:]
    if is_usual(weight, x, sizes):
        return torch.rms_norm(x, sizes, weight, eps)  # type: ignore[arg-type]
    scale = as_kernel_operand(weight, x)
    if (weight is None) == (scale is None):
        return F.rms_norm(x, sizes, scale, eps)
    return apply_affine(F.rms_norm(x, sizes, eps=eps), weight, None)


def _by_formula(x: Tensor, weight: Affine, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return apply_affine(normed.to(x.dtype), weight, None)


def _by_kernel(kernel: str, x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    dtype = norm_dtype("rms_norm", x, weight)
    return run_norm(kernel, x, None, weight, None, None, 0.0, eps, False, dtype, x.dtype)[0]


def _prepare(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Callable[..., Tensor]:
    run = prepare_norm("triton", "rms_norm", False, x, weight, None)
    if run is None:
        return partial(_by_kernel, "triton")
    return lambda x, weight=None, eps=1e-6: run(x, weight, None, float(eps))


def _refusal(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> str:
    return norm_refusal(x, weight, None, eps)


_LEAST = 2**17  # elements; with fewer, calling a compiled loop costs what it saves (128 rows of 768 in fp32: 1.2 times)
# If torch has a fused kernel on CUDA (2.9 and newer), our kernel takes as much time on the GPU and more in Python, but
# torch's backward pass reads x once more. Without a fused kernel, torch's formula takes seven kernels.
_ON_GPU = GpuThreshold(extra=30, saved=1) if has_fused_kernel() else GpuThreshold(extra=0, saved=10)
_OP = Operation(
    "rms_norm",
    (
        Provider(
            "rms_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=_refusal,
            devices=("cuda",), default=True, prepare=_prepare,
            summary="Our Triton kernels: each row is read once, its sum is in fp32, a weight may have another dtype.",
            gradient="One kernel for x and weight; two if a row has more than 8192 columns.",
        ),
        Provider(
            "rms_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refusal,
            devices=("cpu",), default=True,
            summary="A loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop; x and one number for each row are saved.",
        ),
        Provider(
            "rms_norm", "torch", TORCH, _by_torch, default=True,
            summary="torch.rms_norm: one kernel on CUDA, several on CPUs; other weights are applied after it.",
            gradient="torch's own.",
        ),
    ),
    least=_LEAST,
    on_gpu=_ON_GPU,
)  # fmt: skip
