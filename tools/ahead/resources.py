"""What a compiled kernel takes of a multiprocessor, and how many of its blocks fit there. It knows binaries alone."""

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
    """Of one kernel: registers of a thread, bytes of local memory of a thread, bytes of shared memory of a block.

    Local memory is off the chip. A kernel has some where its registers did not suffice (spills) or where it indexes an
    array of its own; neither is wanted in these kernels, so the bound on it is 0. warps: of a block, as the target
    counts them: 32 threads on NVIDIA's GPUs, 64 on AMD's.
    """

    registers: int
    local: int
    shared: int
    warps: int

    def occupancy(self, arch: Arch) -> float:
        """Resident warps over the most that a multiprocessor of `arch` holds; 0 where no block fits."""
        return TARGETS[arch].occupancy(self.registers, self.shared, self.warps)

    def blocks(self, arch: Arch) -> int:
        """Blocks that a multiprocessor of `arch` holds at once."""
        return TARGETS[arch].resident(self.registers, self.shared, self.warps)

    def threads(self, arch: Arch) -> int:
        """Of a block."""
        return self.warps * int(TARGETS[arch].gpu.warp_size)


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


def resources_of_amd(assembly: str, shared: int, warps: int) -> Resources:
    """What a kernel needs on an AMD GPU, by the metadata of its assembly. Raises RuntimeError where there are none."""
    found = {name: re.search(rf"\.{name}:\s*(\d+)", assembly) for name in _OF_AMD}
    if found["vgpr_count"] is None:
        raise RuntimeError("A kernel's assembly for an AMD GPU does not say how many registers it takes.")
    registers, scratch, *spilled = (0 if m is None else int(m.group(1)) for m in found.values())
    return Resources(registers, max(scratch, 4 * sum(spilled)), shared, warps)
