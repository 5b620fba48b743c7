"""Names of hardware and tools for the maker of a trace's GPU, so that advice names only hardware that the trace has."""

from __future__ import annotations

import re
from typing import Literal

from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.steps import LAUNCHES

Maker = Literal["nvidia", "amd", ""]
_AMD = re.compile(r"amd|radeon|instinct|gfx\d", re.IGNORECASE)
_NVIDIA = re.compile(r"nvidia|tesla|geforce|quadro", re.IGNORECASE)


def maker(scope: Scope) -> Maker:
    """Return the maker, from the device's name, else from the runtime that the host calls; "" if it is unknown."""
    if _AMD.search(scope.device_name):
        return "amd"
    if _NVIDIA.search(scope.device_name):
        return "nvidia"
    first = next((e.name for e in scope.trace.of(*LAUNCHES) if e.name.startswith(("hip", "cu"))), "")
    return "amd" if first.startswith("hip") else "nvidia" if first else ""


def matrix_units(scope: Scope) -> str:
    """Return the name of the units that multiply matrices."""
    return "matrix cores" if maker(scope) == "amd" else "tensor cores"


def graph(scope: Scope) -> str:
    """Return the name of a captured sequence of launches, with its article."""
    return {"nvidia": "a CUDA graph", "amd": "a HIP graph"}.get(maker(scope), "a graph")


def clock_tool(scope: Scope) -> str:
    """Return the command that shows clocks and temperature, in brackets; "" if the maker is unknown."""
    found = {"nvidia": " (nvidia-smi -q -d PERFORMANCE,CLOCK)", "amd": " (rocm-smi)"}
    return found.get(maker(scope), "")


def allocator_variable(scope: Scope) -> str:
    """Return the environment variable that configures torch's caching allocator."""
    return "PYTORCH_HIP_ALLOC_CONF" if maker(scope) == "amd" else "PYTORCH_CUDA_ALLOC_CONF"
