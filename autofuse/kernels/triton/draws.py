"""autofuse.kernels.dropout_bits in Triton, with the same bits from the same seed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keep_mask(seed, row, offsets, columns, least):
    """Whether the entries at `offsets` of row `row` (int64) are kept.

    `seed` is the int64 from the seed tensor. `least` is autofuse.kernels.dropout_bits.least_kept(p), an int32.
    """
    start = row * columns
    low = start.to(tl.uint32) + offsets.to(tl.uint32)
    high = (start >> 32).to(tl.uint32)
    bits = mix(mix(low ^ seed.to(tl.uint32)) ^ ((seed >> 32).to(tl.uint32) ^ high))
    return bits.to(tl.int32, bitcast=True) >= least


@triton.jit
def mix(bits):
    """uint32 -> uint32, bijective. Every bit of the result depends on every bit of the input."""
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0xD35A2D97
    return bits ^ (bits >> 15)
