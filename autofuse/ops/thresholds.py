"""From which sizes on blocks beat torch's kernels for attention on a CPU: measured numbers, and nothing else."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

DROPPED = 2**14
"""Scores from which on dropout by blocks is faster."""
LEARNED = 2**16
CAPPED = 2**16
HALF = 2**12


def blocks_are_slower(
    query: Tensor, key: Tensor, dtype: torch.dtype, drops: bool, learned: bool, is_causal: bool
) -> str:
    """Why torch's own kernel is faster for a call, as a sentence; "" where blocks are."""
    scores = query.shape[:-1].numel() * key.shape[-2]
    if drops:
        return "" if scores >= DROPPED else f"Below {DROPPED} scores a call costs more than dropout does."
    if learned:
        return "" if scores >= LEARNED else f"Below {LEARNED} scores the formula is as fast."
    if dtype is torch.bfloat16 and half_is_unfused():
        return "" if scores >= HALF else f"Below {HALF} scores a call costs more than its matrix products."
    return "Torch's flash kernel is as fast, and keeps no weights."


@cache
def half_is_unfused() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 in instructions that torch's flash kernel does not use.

    With AVX512-BF16 and without AMX, oneDNN's products are 4 times as fast as those of float32, while the flash kernel
    is no faster than in float32 (measured on an AMD EPYC with torch 2.13).
    """
    return _has("_is_avx512_bf16_supported") and not _has("_is_amx_tile_supported")


def _has(name: str) -> bool:
    asked = getattr(torch.cpu, name, None)
    return asked is not None and bool(asked())
