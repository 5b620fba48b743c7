"""What a file of Triton kernels declares, so that its kernels can be compiled and judged where there is no GPU.

A module under autofuse/kernels/triton/ holds a table `AHEAD` of `Ahead` entries. Each runs its own `forward` or
`backward` on tensors without data (`sample`); `python -m tools.ahead` takes down the launches, so what is compiled is
what would be launched: types, alignment, block sizes and warps come from the code and are written nowhere twice.

Knows neither Triton nor any kernel: it must import where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ahead:
    """One call of a file's kernels at a shape of a real model, and the least occupancy that it must reach.

    label: what the shape is ("bf16, 8192 rows of 4096"), for the table. run: the call; its result is not looked at.
    occupancy: resident warps over the most that a multiprocessor can hold, as registers, shared memory and the size of
    a block allow; a quarter by default, which keeps enough loads in flight for a kernel bound by memory
    (V. Volkov, "Better performance at lower occupancy", GTC 2010). Lower it with a comment that says what is gained.
    access: bytes that a thread loads or stores at a time, in the mean over the kernel's hot part, at least; 16 is the
    maximum. Lower it, with a comment, for a width whose rows allow only narrower loads.
    quick: whether CI compiles it on every change; the other entries are for the whole table. Every kernel of the file
    must be launched by some quick entry: have the longest row and an odd one among those.
    """

    label: str
    run: Callable[[], object]
    occupancy: float = 0.25
    access: float = 6.0
    quick: bool = True


def sample(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor of `shape` without data, on the meta device: contiguous, its address taken as aligned to 16 bytes."""
    return torch.empty(shape, dtype=dtype, device="meta")
