"""What a compiled kernel takes of a multiprocessor, and how many of its blocks fit there. It knows cubins, not Triton.

The limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; registers are
handed out in units of 256 to a warp, and each block has 1 KiB of shared memory reserved (CUDA Occupancy Calculator).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

KIB = 1024
_REGISTERS = 65_536
_REGISTER_UNIT = 256
_WARPS, _BLOCKS = 64, 32
_RESERVED = 1 * KIB
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Shared:
    """Bytes of shared memory: of a multiprocessor, and the most that one block may have."""

    multiprocessor: int
    block: int


SHARED: Mapping[int, Shared] = MappingProxyType(
    {80: Shared(164 * KIB, 163 * KIB), 90: Shared(228 * KIB, 227 * KIB), 100: Shared(228 * KIB, 227 * KIB)}
)


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers of a thread, bytes of local memory of a thread, bytes of shared memory of a block.

    Local memory is off the chip. A kernel has some where its registers did not suffice (spills) or where it indexes an
    array of its own; neither is wanted in these kernels, so the bound on it is 0.
    """

    registers: int
    local: int
    shared: int
    warps: int

    def occupancy(self, arch: int) -> float:
        """Resident warps over the most that a multiprocessor of sm_`arch` holds; 0 where no block fits."""
        if self.shared > SHARED[arch].block:
            return 0.0
        of_a_warp = -(-self.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        by_registers = _REGISTERS // max(1, of_a_warp) // self.warps
        by_memory = SHARED[arch].multiprocessor // (self.shared + _RESERVED)
        blocks = min(by_registers, by_memory, _WARPS // self.warps, _BLOCKS)
        return blocks * self.warps / _WARPS


def resources(cubin: bytes, dynamic_shared: int, warps: int, cuobjdump: Path) -> Resources:
    """What `cubin` needs, by NVIDIA's cuobjdump. Raises RuntimeError where that says nothing that can be read."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([cuobjdump, "-res-usage", file.name], capture_output=True, text=True)
    found = _USAGE.search(done.stdout)
    if found is None:
        raise RuntimeError(f"{cuobjdump} -res-usage gave no figures for a kernel: {done.stdout}{done.stderr}")
    registers, stack, shared, local = map(int, found.groups())
    return Resources(registers, stack + local, shared + dynamic_shared, warps)
