"""Layer norm of the last dimension.

Knows which operands torch's kernel takes, and what hand-written code does with others; must not know how a model spells
a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.affine import Affine, apply_affine, as_kernel_operand, is_usual
from autofuse.ops.norm_operators import dtype_of, normed_by, prepared, refused


def layer_norm(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, mean and biased variance over the last dimension.

    Shapes: x (..., C). weight and bias are usually (C,), and may be anything that broadcasts against x.
    The result has the dtype to which x, weight and bias promote; statistics are taken in fp32 or better.
    Source: Ba, Kiros & Hinton, arXiv:1607.06450.
    """
    return _OP(x, weight, bias, eps)  # type: ignore[no-any-return]


def normed_by_torch(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    """`layer_norm` by torch's kernel, or by plain torch code where it does not take the operands."""
    sizes = x.shape[-1:]
    if is_usual(weight, x, sizes) and is_usual(bias, x, sizes):
        return torch.layer_norm(x, sizes, weight, bias, eps)  # type: ignore[arg-type]
    scale, shift = as_kernel_operand(weight, x), as_kernel_operand(bias, x)
    if (weight is None) == (scale is None) and (bias is None) == (shift is None):
        return F.layer_norm(x, sizes, scale, shift, eps)
    return apply_affine(F.layer_norm(x, sizes, eps=eps), weight, bias)


def _by_kernel(kernel: str, x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Tensor:
    dtype = dtype_of("layer_norm", x, weight, bias)
    return normed_by(kernel, x, None, weight, bias, None, 0.0, eps, True, dtype, x.dtype)[0]


def _prepared(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> Callable[..., Tensor]:
    run = prepared("triton", "layer_norm", True, x, weight, bias)
    if run is None:
        return partial(_by_kernel, "triton")
    return lambda x, weight=None, bias=None, eps=1e-5: run(x, weight, bias, float(eps))


def _refused(x: Tensor, weight: Affine = None, bias: Affine = None, eps: float = 1e-5) -> str:
    """torch's kernel for CPUs is as good as a loop of ours in fp32 and in training: 0.9 to 1.1 times its time. In half
    precision without gradients ours takes 0.65 to 0.7 of its time from 512 rows of 768 on, and more below that.
    """
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, bias)):
        return "It takes calls without gradients: torch's kernels have as fast ones."
    if x.numel() < _LEAST:
        return f"It takes {_LEAST} elements or more: below, a call costs as much as it saves."
    return refused(x, weight, bias, eps)


_LEAST = 2**18
_OP = Operation(
    "layer_norm",
    (
        Provider(
            "layer_norm", "triton", TRITON, partial(_by_kernel, "triton"), check=refused,
            devices=("cuda",), prepare=_prepared,
            summary="Our Triton kernels: a row is read once, its sums are in fp32, a weight may have another dtype.",
            gradient="One kernel for x, weight and bias; two where a row has more than 8192 columns.",
        ),
        Provider(
            "layer_norm", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_refused,
            devices=("cpu",), dtypes=(torch.bfloat16, torch.float16), default=True,
            summary="A loop over rows that Inductor compiles once for each dtype and width.",
            gradient="A second such loop; what is kept is x and two numbers for each row.",
        ),
        Provider(
            "layer_norm", "torch", TORCH, normed_by_torch, default=True,
            summary="torch.layer_norm, one kernel on every device; weights that it does not take come after it.",
            gradient="torch's own kernel.",
        ),
    ),
)  # fmt: skip
