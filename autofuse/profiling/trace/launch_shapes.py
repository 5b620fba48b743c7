"""Reads the shape of a kernel's launch: how many of the GPU's SMs it can occupy, and how full they are.

Reads Kineto's fields for kernels and devices, and applies CUDA's occupancy rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofuse.profiling.trace.trace import Event, Trace, decimal, integer

_BLOCKS_PER_SM = "blocks per SM"
_OCCUPANCY = "est. achieved occupancy %"


@dataclass(frozen=True)
class Device:
    """A GPU as a trace describes it; 0 or "" for unknown values.

    sms: streaming multiprocessors (compute units on AMD's).
    threads, registers, shared_memory: the most that one SM holds; shared memory in bytes.
    shared_by_default: the most shared memory that a block gets without asking for more, bytes.
    """

    name: str = ""
    sms: int = 0
    threads: int = 0
    warp: int = 32
    registers: int = 0
    shared_memory: int = 0
    shared_by_default: int = 0
    capability: tuple[int, int] = (0, 0)

    @property
    def nvidia(self) -> bool:
        """Whether CUDA's rules hold. AMD's GPUs run 64 threads in step, and their capability means something else."""
        return self.warp == 32 and not self.name.upper().startswith(("AMD", "RADEON"))


@dataclass(frozen=True)
class Shape:
    """The resources that one launch occupies.

    blocks: blocks per SM; None if unknown.
    occupancy: a fraction of 1; None if unknown.
    bounded: the trace lacks registers or shared memory, so the occupancy is an upper bound.
    """

    blocks: float | None = None
    occupancy: float | None = None
    bounded: bool = False

    @property
    def efficiency(self) -> float | None:
        """The fraction of the SMs that have a block of it: min(blocks / SMs, 1)."""
        return None if self.blocks is None else min(self.blocks, 1.0)


def devices_of(trace: Trace) -> dict[Any, Device]:
    """Return the GPUs that a trace describes, by the number that its kernels use."""
    return {integer(found.get("id", at)): _device(found) for at, found in enumerate(trace.devices)}


def device_number(event: Event) -> Any:
    """Return the number of the GPU that the work ran on, as the trace has it."""
    number = integer(event.args.get("device"))
    return integer(event.process) if number is None else number


def stream_number(event: Event) -> Any:
    """Return the number of the stream that the work ran in, as the trace has it."""
    number = integer(event.args.get("stream"))
    return event.thread if number is None else number


def shape_of(kernel: Event, device: Device) -> Shape:
    """Return what a kernel's launch occupies on its device.

    If the trace has Kineto's own estimate of the occupancy, that is used. It is a whole percent, so if CUDA's rules
    give a number that rounds to it, that number is used instead. Kineto reports 0 for kernels that take more shared
    memory than a block gets by default, such as FlashAttention's. A kernel that runs cannot have an occupancy of 0.
    """
    threads, blocks = _product_of_sizes(kernel.args.get("block")), _blocks(kernel, device)
    reported = decimal(kernel.args.get(_OCCUPANCY))
    reported = (
        reported if reported is not None and 0 <= reported <= 100 else None
    )  # -100 means that it could not be computed
    shared = integer(kernel.args.get("shared memory")) or 0
    misreported = reported == 0 and shared + _reserved_shared_memory(device) > (device.shared_by_default or 48 * 1024)
    if threads is None or blocks is None or not device.threads:
        return Shape(blocks, None if reported is None or misreported else reported / 100)
    active, bounded = _active_blocks(kernel, threads, device)
    computed = min(1.0, min(blocks, active) * threads / device.threads)
    if reported is None:
        return Shape(blocks, computed, bounded and blocks > 1)
    return Shape(
        blocks, computed if misreported or (abs(computed * 100 - reported) <= 0.5 and not bounded) else reported / 100
    )


def _device(properties: Mapping[str, Any]) -> Device:
    def number(*names: str) -> int:
        return next((found for name in names if (found := integer(properties.get(name)) or 0) > 0), 0)

    return Device(
        str(properties.get("name", "")),
        number("numSms", "multiProcessorCount", "numSMs", "multiProcessorsCount"),
        number("maxThreadsPerMultiprocessor", "maxThreadsPerMultiProcessor"),
        number("warpSize") or 32,
        number("regsPerMultiprocessor", "regsPerMultiProcessor"),
        number("sharedMemPerMultiprocessor", "sharedMemPerMultiProcessor", "maxSharedMemoryPerMultiProcessor"),
        number("sharedMemPerBlock"),
        (number("computeMajor", "major"), number("computeMinor", "minor")),
    )


def _blocks(kernel: Event, device: Device) -> float | None:
    """Return blocks per SM. If the number of SMs is known, use the grid: Kineto's quotient overflows on huge grids."""
    grid = _product_of_sizes(kernel.args.get("grid"))
    if grid is not None and device.sms:
        return grid / device.sms
    reported = decimal(kernel.args.get(_BLOCKS_PER_SM))
    return reported if reported is not None and reported >= 0 else None


def _product_of_sizes(sizes: Any) -> int | None:
    """Return the product of [8, 16, 1] or "8,16,1" or "(8, 16, 1)" or 128; None for anything else."""
    parts = sizes.strip("[]() ").replace("x", ",").split(",") if isinstance(sizes, str) else sizes
    numbers = [integer(part) for part in parts] if isinstance(parts, (list, tuple)) else [integer(parts)]
    if not numbers or any(number is None or number < 1 for number in numbers):
        return None
    return math.prod(number for number in numbers if number)


def _active_blocks(kernel: Event, threads: int, device: Device) -> tuple[float, bool]:
    """Return the blocks that an SM holds at once, at least 1, and whether that is only an upper bound.

    The rules are those of CUDA's cuda_occupancy.h (cudaOccMaxActiveBlocksPerMultiprocessor).
    """
    reported = kernel.args.get("occupancy")
    known = integer(reported.get("activeBlocksPerMultiprocessor")) if isinstance(reported, Mapping) else None
    if known:
        return known, False
    warps = math.ceil(threads / device.warp)
    limits: list[float] = [device.threads // device.warp // warps]
    registers, shared = integer(kernel.args.get("registers per thread")) or 0, integer(kernel.args.get("shared memory"))
    if not device.nvidia:
        return max(1, limits[0]), True
    limits.append(_most_blocks(device.capability))
    if registers > 0 and device.registers:
        parts = 2 if device.capability == (6, 0) else 4
        warps_of_part = device.registers // parts // _round_up(registers * device.warp, 256)
        limits.append(warps_of_part * parts // warps)
    if shared is not None and shared >= 0 and device.shared_memory:
        used = _round_up(shared + _reserved_shared_memory(device), 128 if device.capability >= (8, 0) else 256)
        limits.append(device.shared_memory // used if used else math.inf)
    is_complete = registers > 0 and shared is not None and device.registers and device.shared_memory
    return max(1, min(limits)), not is_complete


def _most_blocks(capability: tuple[int, int]) -> int:
    """Return resident blocks per SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""
    fewer = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (10, 1): 24, (11, 0): 24}
    by_major = {3: 16, 12: 24}
    return fewer.get(capability, by_major.get(capability[0], 32))


def _reserved_shared_memory(device: Device) -> int:
    """Return the shared memory that the driver takes for itself in every block, in bytes."""
    return 1024 if device.nvidia and device.capability >= (8, 0) else 0


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
