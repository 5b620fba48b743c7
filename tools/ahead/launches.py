"""Runs a file's declared calls and compiles what they launch, for a GPU that need not be there.

Triton is given a driver without a device. Its own binder then decides types, alignment and constants from the
arguments of each launch, as it would on a GPU; only the launch itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.runtime.jit import JITFunction

from autofuse.kernels.ahead_of_time import Ahead
from tools.ahead.absent import absent
from tools.ahead.resources import Resources, resources, resources_of_amd
from tools.ahead.targets import TARGETS, Arch

_NVIDIA = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CUOBJDUMP, NVDISASM = _NVIDIA / "cuobjdump", _NVIDIA / "nvdisasm"


@dataclass(frozen=True)
class Launch:
    """A kernel as one call launches it, compiled.

    programs: how many of them. guarded: whether the device of its tensors was current. binary: the cubin or, for AMD,
    the code object; it is left out of comparisons and of what is printed.
    """

    kernel: str
    constants: str
    resources: Resources
    programs: int = 1
    guarded: bool = True
    binary: bytes = field(default=b"", repr=False, compare=False)


def launches(entry: Ahead, arch: Arch) -> list[Launch]:
    """Every kernel that `entry` launches, in order, compiled for `arch`. What Triton cannot compile raises."""
    with _taken_down(arch) as taken:
        entry.run()
    return taken


@contextmanager
def _taken_down(arch: Arch) -> Iterator[list[Launch]]:
    taken: list[Launch] = []
    usual = JITFunction.run
    with absent(TARGETS[arch].gpu, list(TARGETS).index(arch)) as driver:

        def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            guarded = driver.current == driver.home
            with driver.entered(driver.home):
                compiled = usual(kernel, *arguments, grid=grid, warmup=True, **named)
            taken.append(_launch(kernel, arguments, named, compiled, grid, guarded, arch))
            return compiled

        JITFunction.run = run
        try:
            yield taken
        finally:
            JITFunction.run = usual


def _launch(
    kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any], compiled: Any, grid: Any, guarded: bool, arch: Arch
) -> Launch:
    warps, shared = compiled.metadata.num_warps, compiled.metadata.shared
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    constants = [f"{p.name}={given[p.name]}" for p in kernel.params if p.is_constexpr and p.name in given]
    if TARGETS[arch].gpu.backend == "hip":
        binary, used = compiled.asm["hsaco"], resources_of_amd(compiled.asm["amdgcn"], shared, warps)
    else:
        binary = compiled.asm["cubin"]
        used = resources(binary, shared, warps, CUOBJDUMP)
    programs = 1
    for size in grid if isinstance(grid, tuple) else ():
        programs *= size
    return Launch(kernel.fn.__name__, " ".join(constants), used, programs, guarded, binary)
