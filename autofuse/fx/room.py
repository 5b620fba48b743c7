"""Whether there is memory enough to check a module: several copies of it are held at once, some of them in double.

Knows devices and bytes; decides nothing about what an unchecked module may do.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import torch
from torch import nn

# Two copies, their gradients, the original in double and its gradient, in both modes. Measured: GPT-2 of 475 MiB in
# float32 took 5.2 GiB above itself.
COPIES = 12

_CGROUP = Path("/sys/fs/cgroup")


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


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated on `device`, in bytes; None where nobody can tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [n for n in (_system_bytes(), _container_bytes()) if n is not None]
    return min(known) if device.type == "cpu" and known else None


def _system_bytes() -> int | None:
    """Linux's own estimate of what programs can still get."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _container_bytes() -> int | None:
    """What the limit of a container (cgroup v2) leaves."""
    try:
        return int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup, or no limit: "max"
        return None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
