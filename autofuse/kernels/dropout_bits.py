"""Which entries dropout drops: a function of a seed and an entry's place, the same bits in every kernel.

A mask is never kept: whoever needs it again, the backward pass or a recomputation, draws it again from the seed. The
hash is a 32-bit mixer of C. Wellons' hash prospector (two multiplications, bias 0.107), applied twice, once with each
half of the seed. autofuse/kernels/triton/draws.py has the same in Triton. Knows no operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST, _SECOND = 0x21F0AAAD, 0xD35A2D97 - 2**32  # as signed 32-bit numbers, which wrap around


def drawn_seed(device: torch.device) -> Tensor:
    """A seed from torch's default generator of `device`: one int64 in a tensor of shape (1,)."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def kept(seed: Tensor, rows: Tensor, columns: int, p: float) -> Tensor:
    """Whether each entry is kept (with probability 1 - p): boolean, (..., columns).

    rows: int64, (...,): the number of each row among all rows that share the seed. p: from 0 to 1.
    """
    found = bits(seed, (rows * columns).unsqueeze(-1), columns)
    return found >= least_kept(p) if p < 1 else torch.zeros_like(found, dtype=torch.bool)


def bits(seed: Tensor, start: Tensor, count: int) -> Tensor:
    """The bits that decide about `count` entries from number `start` on (int64, (..., 1)): int32, (..., count)."""
    low = start.to(torch.int32) + torch.arange(count, dtype=torch.int32, device=seed.device)
    high = (start >> 32).to(torch.int32)
    return mixed(mixed(low ^ seed.to(torch.int32)) ^ (seed >> 32).to(torch.int32) ^ high)


def least_kept(p: float) -> int:
    """Entries whose bits, as a signed 32-bit number, are at least this are kept."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def mixed(bits: Tensor) -> Tensor:
    """int32 -> int32, one to one, every bit of the result depending on every bit."""
    bits = (bits ^ _shifted(bits, 16)) * _FIRST
    bits = (bits ^ _shifted(bits, 15)) * _SECOND
    return bits ^ _shifted(bits, 15)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (bits >> by) & ((1 << (32 - by)) - 1)
