"""The providers from other packages, and how operations get them.

Importing this file imports none of those packages. None of them is a default. They are used only where they were
measured to be the best, and checked, on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels import apex, flash_attn, flash_attn_3, flash_attn_cute, flash_attn_parts, liger, quack
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.provider import Check


def _with_common_conditions(check: Check) -> Check:
    """`check`, preceded by the conditions that all packages share."""

    @wraps(check)
    def checked(*args: Any, **kwargs: Any) -> str:
        if not args[0].ndim or not args[0].numel():
            return "It needs non-empty tensors with at least one dimension."
        if any(isinstance(a, Tensor) and a.layout is not torch.strided for a in (*args, *kwargs.values())):
            return "It needs dense tensors."
        return check(*args, **kwargs)

    return checked


PROVIDERS = tuple(
    replace(provider, check=_with_common_conditions(provider.check))
    for module in (flash_attn, flash_attn_parts, flash_attn_3, flash_attn_cute, apex, liger, quack)
    for provider in module.PROVIDERS
)


def offer() -> None:
    """Adds each provider to its operation, if the operation exists and does not have it yet."""
    for provider in PROVIDERS:
        operation = OPERATIONS.get(provider.operation)
        if operation is not None and provider not in operation.providers:
            operation.add(provider)
