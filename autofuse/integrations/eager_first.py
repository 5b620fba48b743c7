"""Runs the first step of a compiled model eagerly, so that autofuse can capture its modules.

autofuse captures a module at its first call. While `torch.compile` traces that call, it cannot, because the compiler
would keep the original forward. Where a trainer calls its callbacks at the start and the end of a step, the first step
therefore runs eagerly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autofuse.torch_private import on_demand


class EagerFirst:
    """Makes compiled code run eagerly between `hold` and `release`."""

    def __init__(self) -> None:
        self._stance: Any = None

    def hold(self) -> None:
        """Runs compiled code eagerly from now on. A second call has no effect."""
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def release(self) -> None:
        """Restores the compiler stance from before `hold`. Without `hold`, it has no effect."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, is compiled by `torch.compile` or `Module.compile`."""
    return any(
        isinstance(m, on_demand.OptimizedModule) or getattr(m, "_compiled_call_impl", None) is not None
        for m in model.modules()
    )
