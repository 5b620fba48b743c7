"""Describes the versions and the hardware of a measurement, without names of hosts, users or paths."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device) -> dict[str, str]:
    """Returns versions, processor, cores, threads and device as text. Optional packages appear if they are loaded."""
    entries = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": str(os.cpu_count() or "unknown"),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    if device.type == "cuda":
        entries["cuda"] = str(torch.version.cuda or torch.version.hip)
    return entries | {name: _version(name) for name in ("triton", "numpy", "transformers") if name in sys.modules}


def _version(name: str) -> str:
    module: Any = sys.modules[name]
    return str(getattr(module, "__version__", "unknown"))


def processor() -> str:
    """Returns the name of the processor as the operating system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
