"""The properties of each GPU that the performance model uses, with their sources.

Bandwidth and multiprocessors are from the peak table (autofuse/profiling/peaks.py). Clocks and second-level caches are
from the makers' data sheets and white papers. Memory latencies are from Luo et al., arXiv:2402.13499, table of the
memory hierarchy (A100 466 cycles, H100 479, RTX 4090 542). Those of B200 and MI300X are assumed, as `assumed` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.profiling.peaks import DevicePeak, peak_of
from tools.ahead.targets import Arch

# The share of the data sheet's bandwidth that a copy reaches: 0.897 on an H100 (Guo, Zadouri and Dao, "Getting
# memory-bound kernels to speed-of-light", 2025), 0.896 on an H200 (4.3 of 4.8 TB/s). Assumed of the others.
COPY = 0.896
# What a launch takes beside its bytes, on the GPU: the two ends of a line through Liger's figures for the forward pass
# of layer norm on an H100 (published.json), 4096 rows of 8192 and of 16384. The only figures that the model is set by.
FIXED = 4.8e-6


@dataclass(frozen=True)
class Gpu:
    """name: in tables. device: as the peak table has it. code: the target whose machine code is counted. clock: cycles
    a second, under load. cache: bytes of the last cache. latency: cycles from a load to its data in memory."""

    name: str
    device: str
    arch: Arch
    code: int
    clock: float
    cache: int
    latency: float
    assumed: str = ""

    @property
    def peak(self) -> DevicePeak:
        """The entry of the peak table. Raises LookupError if there is none."""
        found = peak_of(self.device)
        if found is None or found.multiprocessors is None:
            raise LookupError(f"The peak table has no multiprocessors of {self.device}.")
        return found

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors (AMD: compute units)."""
        return self.peak.multiprocessors or 0

    @property
    def copy(self) -> float:
        """The bytes per second that a copy moves."""
        return COPY * self.peak.bytes_per_second


MIB = 2**20
GPUS = (
    Gpu("A100", "NVIDIA A100-SXM4-80GB", 80, 80, 1.41e9, 40 * MIB, 466),
    Gpu("H100", "NVIDIA H100 80GB HBM3", 90, 90, 1.755e9, 50 * MIB, 479),
    Gpu("H200", "NVIDIA H200", 90, 90, 1.755e9, 50 * MIB, 479),
    Gpu("B200", "NVIDIA B200", 100, 100, 1.85e9, 126 * MIB, 479, "clock, and the latency of an H100"),
    Gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 89, 89, 2.52e9, 72 * MIB, 542),
    Gpu(
        "MI300X", "AMD Instinct MI300X", "gfx942", 90, 2.1e9, 256 * MIB, 1700,
        "a latency of 0.8 microseconds, and as many instructions as NVIDIA's code has",
    ),
)  # fmt: skip
