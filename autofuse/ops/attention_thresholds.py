"""The fastest way to compute attention on a CPU, by size.

All numbers are measured: AMD EPYC (AVX512-BF16, no AMX), torch 2.13, one thread, forward and backward, against
hand-written code, scaled_dot_product_attention and torch.compile. docs/kernels.md has the table. Sizes are numbers of
scores, B * H * T * S.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from autofuse.torch_private import is_amx_tile_supported, is_avx512_bf16_supported

DROPPED = 2**17  # with dropout: from here on, drawing it in blocks saves more than the 60 to 150 us that a call costs
LEARNED = 2**20  # with a mask that requires a gradient
CAPPED = 2**21  # with soft capping; below, the formula is as fast as hand-written code
SUNK = 2**16  # with sinks
HALF = 2**14  # bfloat16, scores plus entries of the keys; below, the slower products of the flash kernel cost less
STEPS = 2**21  # bfloat16: up to here all scores stay in the cache between the steps of the formula


def blocks_are_slower(
    query: Tensor, key: Tensor, dtype: torch.dtype, has_dropout: bool, mask_gets_gradient: bool
) -> str:
    """The reason why another way is faster than blocks for a call, as a sentence; "" if blocks are the fastest."""
    size = scores(query, key)
    if has_dropout:
        return "" if size >= DROPPED else f"Below {DROPPED} scores a call costs more than the dropout."
    if dtype is torch.bfloat16 and flash_is_slow_in_half():
        return "" if size > STEPS else f"Up to {STEPS} scores the formula is as fast."
    if mask_gets_gradient:
        return "" if size >= LEARNED else f"Below {LEARNED} scores the formula is as fast."
    return "Torch's flash kernel is as fast and saves no weights."


def steps_are_slower(
    query: Tensor, key: Tensor, dtype: torch.dtype, has_dropout: bool, mask_gets_gradient: bool
) -> str:
    """The reason why another way is faster than the formula in steps; "" if the steps are the fastest."""
    if has_dropout or dtype is not torch.bfloat16 or not flash_is_slow_in_half():
        return "It supports half precision without dropout, on CPUs where torch's flash kernel is slow."
    size = scores(query, key)
    if size + key.numel() < HALF:
        return f"Below {HALF} scores and key entries together, the flash kernel is as fast."
    return "" if size <= STEPS else f"Above {STEPS} scores blocks are faster."


def scores(query: Tensor, key: Tensor) -> int:
    """The number of attention scores."""
    return query.shape[:-1].numel() * key.shape[-2]


@cache
def flash_is_slow_in_half() -> bool:
    """Whether this CPU multiplies bfloat16 matrices with instructions that torch's flash kernel does not use.

    With AVX512-BF16 and without AMX, oneDNN's bfloat16 products are 4 times as fast as float32 products. The flash
    kernel gains nothing over float32 there.
    """
    return bool(is_avx512_bf16_supported() and not is_amx_tile_supported())
