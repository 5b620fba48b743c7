"""The table in which a file of Triton kernels declares its calls, so that a machine without a GPU can check them.

Each module under autofuse/kernels/triton/ has a table `AHEAD` of `Ahead` entries. An entry calls the module's own
`forward` or `backward` on tensors without data (`sample`). `python -m tools.ahead` records the launches. So it compiles
what would be launched: types, alignment, block sizes and warps come from the code.

This file must import where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ahead:
    """One call of a file's kernels at a shape of a real model, and the lowest occupancy that it may have.

    Attributes:
        label: the shape in words ("bf16, 8192 rows of 4096"), for the table.
        run: makes the call; its result is ignored.
        occupancy: the required share of resident warps, as registers, shared memory and block size allow. The default
            of a quarter keeps enough loads in flight for a memory-bound kernel (V. Volkov, "Better performance at lower
            occupancy", GTC 2010). A lower value needs a comment that says what is gained.
        access: the required bytes for each load or store of a thread, averaged over the hot part of the kernel; at most
            16. A width whose rows allow only narrower loads needs a lower value, with a comment.
        quick: whether CI compiles it for each change; the other entries run for the whole table only. Some quick entry
            must launch each kernel of the file. Include the longest row and an odd one.
    """

    label: str
    run: Callable[[], object]
    occupancy: float = 0.25
    access: float = 6.0
    quick: bool = True


def sample(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without data, on the meta device: contiguous, and treated as aligned to 16 bytes."""
    return torch.empty(shape, dtype=dtype, device="meta")
