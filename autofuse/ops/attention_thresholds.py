"""Which way to compute attention on a CPU is the fastest for which sizes: measured numbers, and nothing else.

Measured on an AMD EPYC (AVX512-BF16, no AMX), torch 2.13, one thread, forward and backward, each against code by hand,
scaled_dot_product_attention and torch.compile; docs/kernels.md has the table. Sizes count scores, B * H * T * S.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from autofuse.torch_private import is_amx_tile_supported, is_avx512_bf16_supported

DROPPED = 2**17  # with dropout: from here on drawing it in blocks is worth 60 to 150 microseconds of calling them
LEARNED = 2**20  # with a mask that gets its gradient
CAPPED = 2**21  # and with keys that heads share; below, the formula is as fast as code by hand
SUNK = 2**16  # with sinks
HALF = 2**14  # bfloat16, and entries of the keys count too: below, the flash kernel's slower products cost less
STEPS = 2**21  # bfloat16: up to here all scores stay in the cache between the steps of the formula


def blocks_are_slower(query: Tensor, key: Tensor, dtype: torch.dtype, drops: bool, learned: bool) -> str:
    """Why another way is faster than blocks for a call, as a sentence; "" where blocks are the fastest."""
    size = scores(query, key)
    if drops:
        return "" if size >= DROPPED else f"Below {DROPPED} scores a call costs more than dropout does."
    if dtype is torch.bfloat16 and half_is_unfused():
        return "" if size > STEPS else f"Up to {STEPS} scores the formula is as fast."
    if learned:
        return "" if size >= LEARNED else f"Below {LEARNED} scores the formula is as fast."
    return "Torch's flash kernel is as fast, and keeps no weights."


def steps_are_slower(query: Tensor, key: Tensor, dtype: torch.dtype, drops: bool, learned: bool) -> str:
    """Why another way is faster than the formula step by step, as a sentence; "" where that is the fastest."""
    if drops or dtype is not torch.bfloat16 or not half_is_unfused():
        return "It is for half precision in which torch's flash kernel is slow, without dropout."
    size = scores(query, key)
    if size + key.numel() < HALF:
        return f"Below {HALF} scores and entries of the keys together, the flash kernel is as fast."
    return "" if size <= STEPS else f"Above {STEPS} scores blocks are faster."


def scores(query: Tensor, key: Tensor) -> int:
    """How many scores attention has."""
    return query.shape[:-1].numel() * key.shape[-2]


@cache
def half_is_unfused() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 in instructions that torch's flash kernel does not use.

    With AVX512-BF16 and without AMX, oneDNN's products are 4 times as fast as those of float32, while the flash kernel
    is no faster than in float32.
    """
    return bool(is_avx512_bf16_supported() and not is_amx_tile_supported())
