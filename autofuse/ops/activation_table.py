"""Activations by name: each file of autofuse/ops/activations/ enters its own here, with who computes it.

torch's own kernel, where none is faster: measured on a CPU (benchmarks/ops.py), a compiled loop takes a fifth of the
time of torch's Mish, half of its tanh GELU, and leaves out the intermediate tensors of what torch has no kernel for.
Knows how an activation is computed; must not know where its input comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import Tensor

from autofuse.ir.vocabulary import OUR_ACTIVATIONS
from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import in_rows
from autofuse.ops.elementwise import biased_by, enter

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {}
ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(_ACTIVATIONS)
_IN_KERNELS: set[str] = set()


def define(
    name: str, torchs: Callable[..., Tensor], *, in_kernels: bool = False, wins_from: int = 0, on_cuda: bool = False
) -> Callable[..., Tensor]:
    """Enter the activation `name`, which torch computes as `torchs`; the result is what computes it best.

    in_kernels: whether our kernels have its formula (autofuse/kernels/compiled/activations.py and triton/), so that
    they can compute it inside of a gate or an MLP. wins_from: the number of elements from which they win on it alone;
    0 where they do not. on_cuda: whether they are the default on CUDA, where torch has one of its own for most.
    """
    enter(name, torchs)
    if in_kernels:
        _IN_KERNELS.add(name)
    own = _own(name, on_cuda) if wins_from else ()
    listed = own or name in OUR_ACTIVATIONS
    made = Operation(name, (*own, _torchs(name, torchs)), least=wins_from, keeps_layout=True) if listed else torchs
    _ACTIVATIONS[name] = made
    return made


def in_kernels(name: str) -> bool:
    """Whether our kernels have the formula of that activation."""
    return name in _IN_KERNELS


def _own(name: str, on_cuda: bool) -> tuple[Provider, ...]:
    triton = Provider(
        name, "triton", TRITON, partial(_by_kernel, "triton", name), check=_misfit, devices=("cuda",), default=on_cuda,
        summary="One Triton kernel of our own.", gradient="One kernel; x is all that is kept.",
    )  # fmt: skip
    compiled = Provider(
        name, "compiled", COMPILER, partial(_by_kernel, "compiled", name), check=_misfit,
        devices=("cpu",), default=True,
        summary="One loop that Inductor compiles for each dtype.",
        gradient="A second such loop; x is all that is kept.",
    )  # fmt: skip
    return triton, compiled


def _torchs(name: str, function: Callable[..., Tensor]) -> Provider:
    summary = f"torch's {name}, in as many kernels as it has."
    return Provider(name, "torch", TORCH, function, default=True, summary=summary, gradient="torch's own.")


def _misfit(x: Tensor) -> str:
    return in_rows(x, "x")


def _by_kernel(kernel: str, name: str, x: Tensor) -> Tensor:
    return biased_by(kernel, x, None, name)
