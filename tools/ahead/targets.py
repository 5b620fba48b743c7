"""The GPUs for which kernels are compiled, and the resources of their multiprocessors.

NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Each of four partitions allocates
registers to a warp in units of 256, and 1 KiB of shared memory is reserved for each block (CUDA Occupancy Calculator).
AMD: the CDNA2 and CDNA3 instruction set references and HIP's "Hardware features". A compute unit has four SIMDs, each
with eight waves and 512 vector registers per lane, which are allocated in units of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from triton.backends.compiler import GPUTarget

KIB = 1024
THREADS = 1024  # the maximum number of threads of a block, on every target
Arch = int | str


@dataclass(frozen=True)
class Target:
    """A GPU as Triton names it, and the limits of one multiprocessor (AMD: compute unit).

    Attributes:
        warps: the maximum number of resident warps.
        blocks: the maximum number of resident blocks.
        registers: the 32-bit registers of each of its `parts`, to which warps are distributed.
        unit: the allocation unit of registers, for a whole warp.
        shared: bytes of shared memory of a multiprocessor.
        block_shared: the maximum for one block.
        reserved: additional bytes of shared memory for each block.
    """

    name: str
    gpu: GPUTarget
    warps: int
    blocks: int
    shared: int
    block_shared: int
    registers: int = 16_384
    parts: int = 4
    unit: int = 256
    reserved: int = 1 * KIB

    def occupancy(self, registers: int, shared: int, warps: int) -> float:
        """Resident warps divided by the maximum; 0 if no block fits."""
        return self.resident(registers, shared, warps) * warps / self.warps

    def resident(self, registers: int, shared: int, warps: int) -> int:
        """The number of blocks that a multiprocessor holds at once. registers: per thread; shared: bytes per block."""
        if shared > self.block_shared:
            return 0
        of_a_warp = -(-max(registers, 1) * self.gpu.warp_size // self.unit) * self.unit
        by_registers = self.registers // of_a_warp * self.parts // warps
        by_memory = self.shared // max(shared + self.reserved, 1)
        return min(by_registers, by_memory, self.warps // warps, self.blocks)


def _nvidia(arch: int, warps: int, blocks: int, shared: int) -> Target:
    return Target(f"sm_{arch}", GPUTarget("cuda", arch, 32), warps, blocks, shared * KIB, (shared - 1) * KIB)


def _cdna(arch: str) -> Target:
    return Target(
        arch, GPUTarget("hip", arch, 64), warps=32, blocks=32, shared=64 * KIB, block_shared=64 * KIB,
        registers=512 * 64, unit=8 * 64, reserved=0,
    )  # fmt: skip


TARGETS: Mapping[Arch, Target] = MappingProxyType(
    {
        80: _nvidia(80, 64, 32, 164),  # A100
        86: _nvidia(86, 48, 16, 100),  # RTX 3090, A40
        89: _nvidia(89, 48, 24, 100),  # RTX 4090, L40
        90: _nvidia(90, 64, 32, 228),  # H100, H200
        100: _nvidia(100, 64, 32, 228),  # B200
        120: _nvidia(120, 48, 24, 100),  # RTX 5090
        "gfx90a": _cdna("gfx90a"),  # MI250
        "gfx942": _cdna("gfx942"),  # MI300
    }
)


def arch_of(text: str) -> Arch:
    """Parse an architecture: 90, sm_90 or gfx942. Raises ValueError if it is not in the table."""
    short = text.removeprefix("sm_")
    found: Arch = int(short) if short.isdigit() else short
    if found not in TARGETS:
        raise ValueError(f"{text} is no target. There are {', '.join(t.name for t in TARGETS.values())}.")
    return found
