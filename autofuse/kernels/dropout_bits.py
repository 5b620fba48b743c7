"""Decides which entries dropout drops, from a seed and the position of an entry, with equal bits in every kernel.

No mask is saved. The backward pass, or a recomputation, draws it again from the seed. The hash is a 32-bit mixer from
C. Wellons' hash prospector (two multiplications, bias 0.107), applied twice, once with each half of the seed.
autofuse/kernels/triton/draws.py has the same hash in Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST, _SECOND = 0x21F0AAAD, 0xD35A2D97 - 2**32  # as signed 32-bit numbers, which wrap around


def draw_seed(device: torch.device) -> Tensor:
    """A seed from torch's default generator of `device`: one int64 in a tensor of shape (1,)."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def keep_mask(seed: Tensor, rows: Tensor, columns: int, p: float) -> Tensor:
    """A mask of the kept entries, each kept with probability 1 - p.

    Args:
        seed: int64, shape (1,).
        rows: int64, shape (...,): the number of each row among all rows that share the seed.
        columns: the entries of a row.
        p: the probability of dropping, from 0 to 1.

    Returns:
        A boolean tensor of shape (..., columns).
    """
    drawn_bits = bits(seed, (rows * columns).unsqueeze(-1), columns)
    return drawn_bits >= least_kept(p) if p < 1 else torch.zeros_like(drawn_bits, dtype=torch.bool)


def bits(seed: Tensor, start: Tensor, count: int) -> Tensor:
    """The bits that decide about `count` entries from number `start` on (int64, (..., 1)): int32, (..., count)."""
    low = start.to(torch.int32) + torch.arange(count, dtype=torch.int32, device=seed.device)
    high = (start >> 32).to(torch.int32)
    return mix(mix(low ^ seed.to(torch.int32)) ^ (seed >> 32).to(torch.int32) ^ high)


def least_kept(p: float) -> int:
    """The threshold: an entry is kept if its bits, as a signed 32-bit number, are at least this."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def mix(bits: Tensor) -> Tensor:
    """int32 -> int32, bijective. Every bit of the result depends on every bit of the input."""
    bits = (bits ^ _shift_right(bits, 16)) * _FIRST
    bits = (bits ^ _shift_right(bits, 15)) * _SECOND
    return bits ^ _shift_right(bits, 15)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right: zeros come from the left."""
    return (bits >> by) & ((1 << (32 - by)) - 1)
