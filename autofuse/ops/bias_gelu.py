"""GELU of x + bias, where the bias of a linear layer is added after the layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.kernels.requirements import evenly_spaced_rows
from autofuse.ops.elementwise import reason_torch_is_as_fast, run_biased
from autofuse.torch_private import functional as F

_NAMES = {"none": "gelu", "tanh": "gelu_tanh"}


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x + bias), for a linear layer whose bias is added here.

    Args:
        x: shape (..., hidden).
        bias: shape (hidden,), or any shape that broadcasts against x.
        approximate: "none" or "tanh", as in `gelu`.

    Returns:
        A tensor in the dtype to which x and bias promote.

    Raises:
        RuntimeError: if `approximate` is another string.

    Source: Hendrycks & Gimpel, arXiv:1606.08415.
    """
    result: Tensor = _OP(x, bias, approximate)
    return result


def _by_torch(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x + bias, approximate=approximate)


def _refusal(x: Tensor, bias: Tensor, approximate: str = "none") -> str:
    if approximate not in _NAMES:
        return 'It supports the approximations "none" and "tanh".'
    if bias.shape != x.shape[-1:] or not bias.is_contiguous() or bias.device != x.device:
        return "It needs a contiguous bias with one entry for each column, on x's device."
    if bias.dtype not in HALVES_AND_SINGLE:
        return "It needs a bias in fp32, bf16 or fp16."
    return evenly_spaced_rows(x, "x")


def _loop_refusal(x: Tensor, bias: Tensor, approximate: str = "none") -> str:
    return _refusal(x, bias, approximate) or reason_torch_is_as_fast(x, _NAMES[approximate])


def _by_kernel(kernel: str, x: Tensor, bias: Tensor, approximate: str = "none") -> Any:
    return run_biased(kernel, x, bias, _NAMES[approximate])


_OP = Operation(
    "bias_gelu",
    (
        Provider(
            "bias_gelu", "triton", TRITON, partial(_by_kernel, "triton"), check=_refusal, devices=("cuda",),
            default=True,
            summary="One Triton kernel of our own.",
            gradient="One kernel for x and partial sums for the bias; x + bias is not saved.",
        ),
        Provider(
            "bias_gelu", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_loop_refusal,
            devices=("cpu",), default=True,
            summary="One loop that Inductor compiles for each dtype and width.",
            gradient="A second such loop, and torch's sum for the bias; x + bias is not saved.",
        ),
        Provider(
            "bias_gelu", "torch", TORCH, _by_torch, default=True, summary="torch add, gelu.",
            gradient="torch's own, kernel by kernel.",
        ),
    ),
    least=2**18,  # below, the 90 microseconds for choosing a provider and dispatching cost more than the loop saves
)  # fmt: skip
