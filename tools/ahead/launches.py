"""Runs a file's declared calls and compiles what they launch, for an architecture that need not be there.

Triton is given a driver without a device. Its own binder then decides types, alignment and constants from the
arguments of each launch, as it would on a GPU; only the launch itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autofuse.kernels.ahead_of_time import Ahead
from tools.ahead.resources import Resources, resources


@dataclass(frozen=True)
class Launch:
    """A kernel as one call launches it, compiled."""

    kernel: str
    constants: str
    resources: Resources


class _Absent:
    """As much of a driver as compiling asks for; a device's number is its architecture's."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def launches(entry: Ahead, arch: int) -> list[Launch]:
    """Every kernel that `entry` launches, in order, compiled for sm_`arch`. What Triton cannot compile raises."""
    with _taken_down(arch) as taken:
        entry.run()
    return taken


@contextmanager
def _taken_down(arch: int) -> Iterator[list[Launch]]:
    """The launches of the block. The driver stays: a process that compiles ahead of time launches nothing."""
    taken: list[Launch] = []
    usual = JITFunction.run

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        compiled = usual(kernel, *arguments, grid=grid, warmup=True, **named)
        taken.append(_launch(kernel, named, compiled))
        return compiled

    driver.set_active(_Absent(arch))
    JITFunction.run = run
    try:
        yield taken
    finally:
        JITFunction.run = usual


def _launch(kernel: Any, named: dict[str, Any], compiled: Any) -> Launch:
    warps = compiled.metadata.num_warps
    constants = [f"{p.name}={named[p.name]}" for p in kernel.params if p.is_constexpr and p.name in named]
    used = resources(compiled.asm["cubin"], compiled.metadata.shared, warps, Path(knobs.nvidia.cuobjdump.path))
    return Launch(kernel.fn.__name__, " ".join(constants), used)
