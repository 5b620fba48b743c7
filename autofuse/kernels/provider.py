"""A provider: one implementation of one operation, with a description of itself.

operation.py decides which provider takes a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autofuse.kernels.packages import Package

Check = Callable[..., str]
HALVES_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def takes_all(*arguments: Any, **named: Any) -> str:
    """The check of a provider that takes every call."""
    return ""


@dataclass(frozen=True)
class Provider:
    """One implementation of one operation.

    `run` and `check` have the parameters of the operation's public function.

    Attributes:
        operation: the name of the operation.
        name: the name of the provider.
        package: the package that it needs.
        run: computes the operation, differentiably.
        summary: how it computes, for reports.
        gradient: where the gradient comes from, for reports.
        check: returns why `run` does not support these arguments, as a sentence; "" if it does. It must check
            everything that `run` relies on and that `devices` and `dtypes` (those of the first argument) do not cover,
            and must never raise an error. It may depend on sizes, strides, dtypes, devices, plain values, whether
            gradients are needed, autocast, and whether a CUDA graph is captured, and on nothing else: it runs once for
            each combination of these.
        devices: the types of devices.
        dtypes: the dtypes of the first argument.
        deterministic: whether equal calls give equal bits.
        default: whether it may be chosen without a measurement. Others are used only where they were measured and
            checked on this machine.
        prepare: takes the arguments of a call that `check` accepts, and returns the function that runs this call and
            all calls that are equal in everything on which `check` may depend. So what such calls share is computed
            once. None means `run`.
    """

    operation: str
    name: str
    package: Package
    run: Callable[..., Any]
    summary: str
    gradient: str
    check: Check = takes_all
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[torch.dtype, ...] = HALVES_AND_SINGLE
    deterministic: bool = True
    default: bool = False
    prepare: Callable[..., Callable[..., Any]] | None = None

    def unsuited(self, device: str, dtype: torch.dtype, deterministic: bool) -> str:
        """The reason why it is not a candidate for calls of this kind, as a sentence; "" if it is one."""
        if device not in self.devices:
            return f"It runs on {' and '.join(self.devices)}, not on {device}."
        if dtype not in self.dtypes:
            return f"It takes {', '.join(str(d).removeprefix('torch.') for d in self.dtypes)}, not {dtype}."
        if deterministic and not self.deterministic:
            return "It is not deterministic, but the settings require deterministic algorithms."
        return self.package.missing()
