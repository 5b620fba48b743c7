"""Activations by name, each by the fastest kernel there is.

torch's own kernel, where none is faster: measured on a CPU (benchmarks/ops.py), a compiled loop takes a fifth of the
time of torch's Mish, half of its tanh GELU, and leaves out the intermediate tensors of what torch has no kernel for.
Knows how an activation is computed; must not know where its input comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.operation import Operation
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.kernels.requirements import in_rows
from autofuse.ops.elementwise import BY_TORCH, biased_by

Activation = str | Callable[[Tensor], Tensor]  # a name in ACTIVATIONS, or what computes it


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x * P(X <= x) for a standard normal X, elementwise.

    `approximate="none"` is 0.5 * x * (1 + erf(x / sqrt(2))); "tanh" is section 2 of the same paper,
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    Source: Hendrycks & Gimpel, arXiv:1606.08415. Raises RuntimeError for another `approximate`, or an integer `x`.
    """
    return gelu_tanh(x) if approximate == "tanh" else F.gelu(x, approximate=approximate)


def gelu_tanh(x: Tensor) -> Tensor:
    """`gelu` by its tanh approximation."""
    return ACTIVATIONS["gelu_tanh"](x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise: Elfwing, Uchibe & Doya, arXiv:1702.03118."""
    return F.silu(x)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)), elementwise: Misra, arXiv:1908.08681."""
    return ACTIVATIONS["mish"](x)


def hardswish(x: Tensor) -> Tensor:
    """x * clamp(x + 3, 0, 6) / 6, elementwise: Howard et al., arXiv:1905.02244."""
    return F.hardswish(x)


def glu(x: Tensor) -> Tensor:
    """The first half of the last dimension times the sigmoid of the second: Dauphin et al., arXiv:1612.08083.

    Shapes: x (..., 2 * hidden); the result is (..., hidden). Raises RuntimeError for an odd last dimension.
    """
    return F.glu(x, dim=-1)


def activation(x: Tensor, name: Activation) -> Tensor:
    """The activation called `name`, one of ACTIVATIONS, elementwise; or what a function or a module makes of `x`.

    Raises ValueError for a name that is not in ACTIVATIONS.
    """
    if not isinstance(name, str):
        return name(x)
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ValueError(f"There is no activation called {name!r}. Use one of {', '.join(sorted(ACTIVATIONS))}.")
    return function(x)


def named(name: Activation) -> str:
    """Why our kernels do not compute an activation, as a sentence; "" where they do."""
    if not isinstance(name, str):
        return "It takes activations by name, not functions."
    return "" if name in ACTIVATIONS else f"It has no activation called {name!r}."


def _misfit(x: Tensor) -> str:
    return in_rows(x, "x")


def _by_kernel(kernel: str, name: str, x: Tensor) -> Tensor:
    return biased_by(kernel, x, None, name)


def _operation(name: str, least: int, on_cuda: bool) -> Operation:
    """on_cuda: whether our kernel is the default on CUDA, where torch has one of its own for most."""
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
    torchs = Provider(
        name, "torch", TORCH, BY_TORCH[name], default=True, summary=f"torch's {name}, in as many kernels as it has.",
        gradient="torch's own.",
    )  # fmt: skip
    return Operation(name, (triton, compiled, torchs), least=least)


# Where loops begin to win, in elements: the costlier torch's own code, the sooner.
_OWN: Mapping[str, Operation] = MappingProxyType(
    {
        "gelu_tanh": _operation("gelu_tanh", 2**18, on_cuda=False),
        "quick_gelu": _operation("quick_gelu", 2**20, on_cuda=True),
        "relu_squared": _operation("relu_squared", 2**20, on_cuda=True),
        "mish": _operation("mish", 2**17, on_cuda=False),
    }
)
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({**BY_TORCH, **_OWN})
