"""RMS norm of the last dimension.

Knows which operands torch's kernel takes, and what hand-written code does with others; must not know how a model spells
a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.affine import Affine, affine, fitting, is_usual
from autofuse.ops.norm_operators import dtype_of, normed_by, prepared, refused
from autofuse.torch_private import FUSED_RMS_NORM_BACKWARD, forward_ad


def rms_norm(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension.

    Shapes, dtypes: as `layer_norm`. Source: Zhang & Sennrich, arXiv:1910.07467.
    """
    return _OP(x, weight, eps)  # type: ignore[no-any-return]


def has_fused_kernel() -> bool:
    """Whether this torch computes an RMS norm on CUDA in one kernel, forward and backward."""
    return bool(FUSED_RMS_NORM_BACKWARD != "missing")


def _by_torch(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    if forward_ad._current_level >= 0:  # torch's formula adds eps in place, which torch.func.linearize cannot replay
        return _by_formula(x, weight, eps)
    sizes = x.shape[-1:]
    if is_usual(weight, x, sizes):
        return torch.rms_norm(x, sizes, weight, eps)  # type: ignore[arg-type]
    scale = fitting(weight, x)
    if (weight is None) == (scale is None):
        return F.rms_norm(x, sizes, scale, eps)
    return affine(F.rms_norm(x, sizes, eps=eps), weight, None)


def _by_formula(x: Tensor, weight: Affine, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return affine(normed.to(x.dtype), weight, None)


def _by_kernel(kernel: str, x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Tensor:
    dtype = dtype_of("rms_norm", x, weight)
    return normed_by(kernel, x, None, weight, None, None, 0.0, eps, False, dtype, x.dtype)[0]


def _prepared(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> Callable[..., Tensor]:
    run = prepared("triton", "rms_norm", False, x, weight, None)
    if run is None:
        return partial(_by_kernel, "triton")
    return lambda x, weight=None, eps=1e-6: run(x, weight, None, float(eps))


def _refused(x: Tensor, weight: Affine = None, eps: float = 1e-6) -> str:
    return refused(x, weight, None, eps)


_LEAST = 2**17  # elements; with fewer, calling a compiled loop costs what it saves (128 rows of 768 in fp32: 1.2 times)
# Where torch has a fused kernel on CUDA (2.9 and newer), a call of ours takes as much of the GPU's time and more of
# Python's; the backward pass of torch's reads x once more. Elsewhere torch's formula takes seven kernels.
_ON_GPU = GpuThreshold(extra=30, saved=1) if has_fused_kernel() else GpuThreshold(extra=0, saved=10)
_OP = Operation(
    "rms_norm",
    (
        Provider(
            "rms_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=_refused,
            devices=("cuda",), default=True, prepare=_prepared,
            summary="Our Triton kernels: a row is read once, its sum is in fp32, a weight may have another dtype.",
            gradient="One kernel for x and weight; two where a row has more than 8192 columns.",
        ),
        Provider(
            "rms_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refused,
            devices=("cpu",), default=True,
            summary="A loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop; what is kept is x and one number for each row.",
        ),
        Provider(
            "rms_norm", "torch", TORCH, _by_torch, default=True,
            summary="torch.rms_norm: one kernel on CUDA, several on CPUs; weights that it does not take come after it.",
            gradient="torch's own.",
        ),
    ),
    least=_LEAST,
    on_gpu=_ON_GPU,
)  # fmt: skip
