"""Layer norm of the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.affine import Affine, apply_affine, as_kernel_operand, is_usual
from autofuse.ops.derivatives import needs_unfused_formula
from autofuse.ops.norm_operators import norm_dtype, norm_refusal, prepare_norm, run_norm
from autofuse.torch_private import functional as F


def layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, with mean and biased variance over the last dimension.

    Args:
        x: shape (..., C).
        weight: usually (C,); any shape that broadcasts against x.
        bias: usually (C,); any shape that broadcasts against x.
        eps: is added to the variance.

    Returns:
        A tensor of shape (..., C) in the dtype to which x, weight and bias promote. Statistics are computed in fp32 or
        fp64.

    Source: Ba, Kiros & Hinton, arXiv:1607.06450.
    """
    return _OP(x, weight, bias, eps)  # type: ignore[no-any-return]


def layer_norm_by_torch(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """`layer_norm` with torch's kernel. Operands that the kernel does not support are applied after it."""
    sizes = x.shape[-1:]
    if is_usual(weight, x, sizes) and is_usual(bias, x, sizes):
        return torch.layer_norm(x, sizes, weight, bias, eps)  # type: ignore[arg-type]
    scale, shift = as_kernel_operand(weight, x), as_kernel_operand(bias, x)
    # None is also the result for an operand that cannot be converted, so compare it with what was passed.
    if (weight is None) == (scale is None) and (bias is None) == (shift is None):
        return F.layer_norm(x, sizes, scale, shift, eps)
    return apply_affine(F.layer_norm(x, sizes, eps=eps), weight, bias)


def _with_every_derivative(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """`layer_norm_by_torch`, or the plain formula where torch.func asks for more than one derivative, or forward mode.

    torch's kernel has two derivatives. Its third one is wrong, and so is the derivative of a forward-mode derivative.
    """
    operands = (t for t in (x, weight, bias) if isinstance(t, Tensor))
    if not needs_unfused_formula(*operands):
        return layer_norm_by_torch(x, weight, bias, eps)
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = rows - rows.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return apply_affine(normed.to(x.dtype), weight, bias)


def _by_kernel(kernel: str, x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    dtype = norm_dtype("layer_norm", x, weight, bias)
    return run_norm(kernel, x, None, weight, bias, None, 0.0, eps, True, dtype, x.dtype)[0]


def _prepare(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Callable[..., Tensor]:
    run = prepare_norm("triton", "layer_norm", True, x, weight, bias)
    if run is None:
        return partial(_by_kernel, "triton")
    return lambda x, weight=None, bias=None, eps=1e-5: run(x, weight, bias, float(eps))


def _refusal_on_cpu(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> str:
    """Declines calls on which torch's kernel for CPUs is as fast as a loop.

    In fp32 and in training it takes 0.9 to 1.1 times the loop's time. In half precision without gradients the loop
    takes 0.65 to 0.7 of its time from 512 rows of 768 on, and more below.
    """
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, bias)):
        return "It runs without gradients only: torch's kernels are as fast in training."
    if x.numel() < _LEAST:
        return f"It needs {_LEAST} elements or more: below, a call costs as much as it saves."
    return norm_refusal(x, weight, bias, eps)


_LEAST = 2**18
_OP = Operation(
    "layer_norm",
    (
        Provider(
            "layer_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=norm_refusal,
            devices=("cuda",), prepare=_prepare,
            summary="Our Triton kernels: each row is read once, sums are in fp32, a weight may have another dtype.",
            gradient="One kernel for x, weight and bias; two if a row has more than 8192 columns.",
        ),
        Provider(
            "layer_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refusal_on_cpu,
            devices=("cpu",), dtypes=(torch.bfloat16, torch.float16), default=True,
            summary="A loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop; x and two numbers for each row are saved.",
        ),
        Provider(
            "layer_norm", "torch", TORCH, _with_every_derivative, default=True,
            summary="torch.layer_norm, one kernel on every device; weights it does not support are applied after it.",
            gradient="torch's own kernel.",
        ),
    ),
)  # fmt: skip
