"""Letting the first step of a compiled model run eagerly, so that its modules can be looked at when they are called.

A module that is captured at its first call cannot be captured while `torch.compile` traces it: the compiler would keep
the forward that it found. Where a trainer tells its callbacks when a step begins and ends, the step before compilation
is made an eager one. Knows torch's compiler; must not know any trainer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autofuse.torch_private import on_demand


class EagerFirst:
    """Between `hold` and `release`, what is compiled with `torch.compile` runs eagerly."""

    def __init__(self) -> None:
        self._stance: Any = None

    def hold(self) -> None:
        """From now on eagerly. Twice is as good as once."""
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def release(self) -> None:
        """Compiled again, or whatever the stance was before; nothing if nothing was held."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile`, or `Module.compile`, was asked for the model or any part of it."""
    return any(
        isinstance(m, on_demand.OptimizedModule) or getattr(m, "_compiled_call_impl", None) is not None
        for m in model.modules()
    )
