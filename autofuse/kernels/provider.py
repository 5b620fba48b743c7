"""A provider: one way to compute one operation, and what it says of itself.

Knows the contract only; which provider takes a call is operation.py's matter.
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
    """One way to compute one operation.

    `run` and `check` take what the operation's public function takes. `run` gives what it gives, differentiable.
    `check` says beforehand why `run` would not do for these arguments, as a sentence, "" where it would: it must look
    at whatever `run` relies on that is not in `devices` and `dtypes` (those of the first argument), and never raise.
    It goes by sizes, strides, dtypes, devices, plain values, whether gradients are asked for, autocast, and whether a
    CUDA graph is captured, and by nothing else: it is asked once for each.
    `prepare` takes the arguments of a call that `check` has let pass, and gives what runs it and every call that
    differs in nothing that `check` may go by: what such a kind of call decides is computed once. None: `run` does.
    `gradient` says where the gradient comes from. A `default` may be chosen unmeasured; others only where they were
    measured and checked on the machine.
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
        """Why it is no candidate for any call of that kind here, as a sentence; "" where it is one."""
        if device not in self.devices:
            return f"It runs on {' and '.join(self.devices)}, not on {device}."
        if dtype not in self.dtypes:
            return f"It takes {', '.join(str(d).removeprefix('torch.') for d in self.dtypes)}, not {dtype}."
        if deterministic and not self.deterministic:
            return "It is not deterministic, and deterministic algorithms are asked for."
        return self.package.missing()
