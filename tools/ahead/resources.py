"""The resources of a multiprocessor that a compiled kernel uses, and the number of its blocks that fit."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.ahead.targets import TARGETS, Arch

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_OF_AMD = ("vgpr_count", "private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count")


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel: registers and bytes of local memory per thread, bytes of shared memory per block.

    Local memory is off the chip. A kernel uses it for spilled registers and for arrays that it indexes. These kernels
    must have neither, so the bound is 0. `warps` is the number of warps per block: 32 threads each on NVIDIA's GPUs, 64
    on AMD's.
    """

    registers: int
    local: int
    shared: int
    warps: int

    def occupancy(self, arch: Arch) -> float:
        """Resident warps divided by the maximum of a multiprocessor of `arch`; 0 if no block fits."""
        return TARGETS[arch].occupancy(self.registers, self.shared, self.warps)

    def blocks(self, arch: Arch) -> int:
        """The number of blocks that a multiprocessor of `arch` holds at once."""
        return TARGETS[arch].resident(self.registers, self.shared, self.warps)

    def threads(self, arch: Arch) -> int:
        """The number of threads of a block."""
        return self.warps * int(TARGETS[arch].gpu.warp_size)


def resources(cubin: bytes, dynamic_shared: int, warps: int, cuobjdump: Path) -> Resources:
    """Read the resources of `cubin` with NVIDIA's cuobjdump. Raises RuntimeError if its output cannot be parsed."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([cuobjdump, "-res-usage", file.name], capture_output=True, text=True)
    found = _USAGE.search(done.stdout)
    if found is None:
        raise RuntimeError(f"{cuobjdump} -res-usage gave no figures for a kernel: {done.stdout}{done.stderr}")
    registers, stack, shared, local = map(int, found.groups())
    return Resources(registers, stack + local, shared + dynamic_shared, warps)


def resources_of_amd(assembly: str, shared: int, warps: int) -> Resources:
    """Read the resources of a kernel on an AMD GPU from its assembly. Raises RuntimeError if it has no metadata."""
    found = {name: re.search(rf"\.{name}:\s*(\d+)", assembly) for name in _OF_AMD}
    if found["vgpr_count"] is None:
        raise RuntimeError("A kernel's assembly for an AMD GPU does not say how many registers it takes.")
    registers, scratch, *spilled = (0 if m is None else int(m.group(1)) for m in found.values())
    return Resources(registers, max(scratch, 4 * sum(spilled)), shared, warps)
