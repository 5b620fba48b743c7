"""Floating point operations of torch's flash attention for CPUs. torch.utils.flop_counter counts none for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autofuse.torch_private import CPU_FLASH_ATTENTION, CPU_FLASH_ATTENTION_BACKWARD


def _forward(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> int:
    """Two matrix products of shapes (B, H, T, d), (B, G, S, d), (B, G, S, dv); masked entries count."""
    return int(2 * math.prod(query[:3]) * key[2] * (query[3] + value[3]))


def _backward(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **named: Any) -> int:
    """Five matrix products: the scores again, and two for each of the two products."""
    return int(2 * math.prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3]))


SDPA_ON_CPU: Mapping[Any, Any] = MappingProxyType(
    {
        CPU_FLASH_ATTENTION: _forward,
        CPU_FLASH_ATTENTION_BACKWARD: _backward,
    }
)
"""`FlopCounterMode(custom_mapping=dict(SDPA_ON_CPU))` counts attention on a CPU as torch counts it on a GPU."""
