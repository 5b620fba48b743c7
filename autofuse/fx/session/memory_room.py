"""Whether there is memory enough to check a module: several copies of it are held at once, some of them in double.

Knows devices and bytes; decides nothing about what an unchecked module may do.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import torch
from torch import nn

from autofuse.measure.available_memory import free_bytes

# Two copies, their gradients, the original in double and its gradient, in both modes. Measured: GPT-2 of 475 MiB in
# float32 took 5.2 GiB above itself.
COPIES = 12


def lack_of_room(module: nn.Module) -> str:
    """Why `module` cannot be checked here, or "" where there is room or nobody can tell."""
    needed = Counter[torch.device]()
    for tensor in chain(module.parameters(), module.buffers()):
        needed[tensor.device] += tensor.numel() * tensor.element_size() * COPIES
    for device, count in needed.items():
        free = free_bytes(device)
        if free is not None and count > free:
            return (
                f"checking takes about {_gib(count)} of memory on {device}, and {_gib(free)} are free there "
                "(verify=False fuses unchecked)"
            )
    return ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
