"""Finds out how much memory a program can still allocate."""

from __future__ import annotations

from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int | None:
    """Returns the bytes that can still be allocated on `device`; None if that is unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    estimates = [n for n in (_system_bytes(), _container_bytes()) if n is not None]
    return min(estimates) if device.type == "cpu" and estimates else None


def _system_bytes() -> int | None:
    """Returns Linux's estimate of the memory that is available to programs, in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _container_bytes() -> int | None:
    """Returns the bytes that are left below the limit of a container (cgroup v2)."""
    try:
        return int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup, or no limit: "max"
        return None
