"""The providers that come from other packages, and how operations get them.

Importing this imports none of those packages. None of them is a default: they take a call where they were measured to
be best, and checked, on the machine.
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


def _of_usual_operands(check: Check) -> Check:
    """`check`, which then need not think of what no kernel of theirs takes."""

    @wraps(check)
    def asked(*args: Any, **kwargs: Any) -> str:
        if not args[0].ndim or not args[0].numel():
            return "It takes tensors that have dimensions and are not empty."
        if any(isinstance(a, Tensor) and a.layout is not torch.strided for a in (*args, *kwargs.values())):
            return "It takes dense tensors."
        return check(*args, **kwargs)

    return asked


PROVIDERS = tuple(
    replace(provider, check=_of_usual_operands(provider.check))
    for module in (flash_attn, flash_attn_parts, flash_attn_3, flash_attn_cute, apex, liger, quack)
    for provider in module.PROVIDERS
)


def offer() -> None:
    """Add each provider to its operation, where there is one and it is not there yet."""
    for provider in PROVIDERS:
        operation = OPERATIONS.get(provider.operation)
        if operation is not None and provider not in operation.providers:
            operation.add(provider)
