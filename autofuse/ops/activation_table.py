"""The table of activations: each file of autofuse/ops/activations/ adds its own, with their providers.

torch's own kernel stays the provider where nothing is faster. Measured on a CPU (benchmarks/ops.py): a compiled loop
takes a fifth of the time of torch's Mish and half the time of its tanh GELU. For formulas without a kernel in torch,
the loop avoids the intermediate tensors.
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
from autofuse.kernels.requirements import evenly_spaced_rows
from autofuse.ops.elementwise import register_torch_function, run_biased

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {}
ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(_ACTIVATIONS)
_IN_KERNELS: set[str] = set()


def define(
    name: str, torchs: Callable[..., Tensor], *, in_kernels: bool = False, wins_from: int = 0, on_cuda: bool = False
) -> Callable[..., Tensor]:
    """Adds the activation `name` to the table.

    Args:
        name: the name of the activation.
        torchs: computes it with torch's own functions.
        in_kernels: whether our kernels (autofuse/kernels/compiled/activations.py and triton/) contain its formula, so
            that they can compute it inside a gate or an MLP.
        wins_from: the number of elements from which our kernels are faster for the activation alone; 0 if they never
            are.
        on_cuda: whether our kernels are the default on CUDA. torch has a fast kernel for most activations there.

    Returns:
        The function to call: an `Operation` that chooses a provider, or `torchs` if there is no choice.
    """
    register_torch_function(name, torchs)
    if in_kernels:
        _IN_KERNELS.add(name)
    own = _own_providers(name, on_cuda) if wins_from else ()
    listed = own or name in OUR_ACTIVATIONS
    chosen = (
        Operation(name, (*own, _torch_provider(name, torchs)), least=wins_from, keeps_layout=True) if listed else torchs
    )
    _ACTIVATIONS[name] = chosen
    return chosen


def in_kernels(name: str) -> bool:
    """Whether our kernels contain the formula of the activation `name`."""
    return name in _IN_KERNELS


def _own_providers(name: str, on_cuda: bool) -> tuple[Provider, ...]:
    triton = Provider(
        name, "triton", TRITON, partial(_by_kernel, "triton", name), check=_refusal, devices=("cuda",), default=on_cuda,
        summary="One Triton kernel of our own.", gradient="One kernel; x is all that is kept.",
    )  # fmt: skip
    compiled = Provider(
        name, "compiled", COMPILER, partial(_by_kernel, "compiled", name), check=_refusal,
        devices=("cpu",), default=True,
        summary="One loop that Inductor compiles for each dtype.",
        gradient="A second such loop; x is all that is kept.",
    )  # fmt: skip
    return triton, compiled


def _torch_provider(name: str, function: Callable[..., Tensor]) -> Provider:
    summary = f"torch's {name}, in as many kernels as it has."
    return Provider(name, "torch", TORCH, function, default=True, summary=summary, gradient="torch's own.")


def _refusal(x: Tensor) -> str:
    return evenly_spaced_rows(x, "x")


def _by_kernel(kernel: str, name: str, x: Tensor) -> Tensor:
    return run_biased(kernel, x, None, name)
