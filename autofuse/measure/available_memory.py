"""How much memory can still be had. Knows devices and bytes; must not know what for."""

from __future__ import annotations

from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


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
