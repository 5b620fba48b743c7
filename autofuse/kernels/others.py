"""The providers that come from other packages, and how operations get them.

Importing this imports none of those packages. None of them is a default: they take a call where they were measured to
be best, and checked, on the machine.
"""

from __future__ import annotations

from autofuse.kernels import apex, flash_attn, flash_attn_cute, flash_attn_parts, liger, quack
from autofuse.kernels.operation import OPERATIONS

PROVIDERS = (
    *flash_attn.PROVIDERS,
    *flash_attn_parts.PROVIDERS,
    *flash_attn_cute.PROVIDERS,
    *apex.PROVIDERS,
    *liger.PROVIDERS,
    *quack.PROVIDERS,
)


def offer() -> None:
    """Add each provider to its operation, where there is one and it is not there yet."""
    for provider in PROVIDERS:
        operation = OPERATIONS.get(provider.operation)
        if operation is not None and provider not in operation.providers:
            operation.add(provider)
