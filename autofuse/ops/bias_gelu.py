"""GELU of a sum with a bias: what follows a linear layer that leaves its bias out.

Knows the two GELUs; must not know which projection made x.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.kernels.requirements import in_rows
from autofuse.ops.elementwise import beaten_by_torch, biased_by

_NAMES = {"none": "gelu", "tanh": "gelu_tanh"}


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x + bias): what follows a linear layer without its bias.

    Shapes: x (..., hidden), bias (hidden,), or anything that broadcasts against x. The result has the dtype to which
    both promote. `approximate` is "none" or "tanh", as of `gelu`.

    Source: Hendrycks & Gimpel, arXiv:1606.08415. Raises RuntimeError for another `approximate`.
    """
    made: Tensor = _OP(x, bias, approximate)
    return made


def _by_torch(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x + bias, approximate=approximate)


def _misfit(x: Tensor, bias: Tensor, approximate: str = "none") -> str:
    if approximate not in _NAMES:
        return 'It takes "none" or "tanh" as the approximation.'
    if bias.shape != x.shape[-1:] or not bias.is_contiguous() or bias.device != x.device:
        return "It takes a bias of one entry for each column, on x's device."
    if bias.dtype not in HALVES_AND_SINGLE:
        return "It takes a bias of fp32, bf16 or fp16."
    return in_rows(x, "x")


def _misfit_of_loop(x: Tensor, bias: Tensor, approximate: str = "none") -> str:
    return _misfit(x, bias, approximate) or beaten_by_torch(x, _NAMES[approximate])


def _by_kernel(kernel: str, x: Tensor, bias: Tensor, approximate: str = "none") -> Any:
    return biased_by(kernel, x, bias, _NAMES[approximate])


_OP = Operation(
    "bias_gelu",
    (
        Provider(
            "bias_gelu", "triton", TRITON, partial(_by_kernel, "triton"), check=_misfit, devices=("cuda",),
            default=True,
            summary="One Triton kernel of our own.",
            gradient="One kernel for x and partial sums for the bias; the sum of both is not kept.",
        ),
        Provider(
            "bias_gelu", "compiled", COMPILER, partial(_by_kernel, "compiled"), check=_misfit_of_loop,
            devices=("cpu",), default=True,
            summary="One loop that Inductor compiles for each dtype and width.",
            gradient="A second such loop, and torch's sum for the bias; the sum of both is not kept.",
        ),
        Provider(
            "bias_gelu", "torch", TORCH, _by_torch, default=True, summary="torch add, gelu.",
            gradient="torch's own, kernel by kernel.",
        ),
    ),
    least=2**18,  # choosing and registration cost about 90 microseconds of a CPU
)  # fmt: skip
