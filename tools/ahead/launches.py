"""Runs the declared calls of a file, and compiles the kernels that they launch, for a GPU that need not be present.

Triton gets a driver without a device. So its own binder determines types, alignment and constants from the arguments of
each launch, as on a GPU. Only the launch itself is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from autofuse.kernels.ahead_of_time import Ahead
from tools.ahead.absent import absent
from tools.ahead.addresses import narrow_addresses
from tools.ahead.resources import Resources, resources, resources_of_amd
from tools.ahead.targets import TARGETS, Arch

_NVIDIA = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_SIZE = re.compile("block|rows|columns|tall", re.IGNORECASE)  # constants that are sizes of a tile
CUOBJDUMP, NVDISASM = _NVIDIA / "cuobjdump", _NVIDIA / "nvdisasm"


@dataclass(frozen=True)
class Launch:
    """A compiled kernel, as one call launches it.

    Attributes:
        file: the file of the kernel, without .py.
        programs: the number of programs.
        tile: the number of entries that a program handles at a time: the product of its block sizes.
        ideal: bytes for each entry of the smallest large operand, if every operand is read or written once.
        narrow: addresses that are computed in 32 bits and may need more (tools/ahead/addresses.py).
        guarded: whether the device of its tensors was current.
        binary: the cubin or, for AMD, the code object. It is not compared and not printed.
    """

    kernel: str
    constants: str
    resources: Resources
    file: str = ""
    programs: int = 1
    tile: int = 1
    ideal: float = 0.0
    narrow: tuple[str, ...] = ()
    guarded: bool = True
    binary: bytes = field(default=b"", repr=False, compare=False)


def launches(entry: Ahead, arch: Arch) -> list[Launch]:
    """Compile every kernel that `entry` launches for `arch`, in order. Errors of Triton's compiler are not caught."""
    with _record_launches(arch) as taken:
        entry.run()
    return taken


@contextmanager
def _record_launches(arch: Arch) -> Iterator[list[Launch]]:
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
    if TARGETS[arch].gpu.backend == "hip":
        binary, used = compiled.asm["hsaco"], resources_of_amd(compiled.asm["amdgcn"], shared, warps)
    else:
        binary = compiled.asm["cubin"]
        used = resources(binary, shared, warps, CUOBJDUMP)
    constant = {p.name: given[p.name] for p in kernel.params if p.is_constexpr and p.name in given}
    tile = prod(v for name, v in constant.items() if _SIZE.search(name) and isinstance(v, int))
    return Launch(
        kernel=kernel.fn.__name__,
        constants=" ".join(f"{name}={value}" for name, value in constant.items()),
        resources=used,
        file=kernel.fn.__module__.rpartition(".")[2],
        programs=prod(grid) if isinstance(grid, tuple) else 1,
        tile=tile,
        ideal=_ideal_bytes(v for v in given.values() if isinstance(v, Tensor)),
        narrow=tuple(narrow_addresses(compiled.asm["ttir"], "LONG" in constant)),
        guarded=guarded,
        binary=binary,
    )


def _ideal_bytes(operands: Iterable[Tensor]) -> float:
    apart = {id(x): x for x in operands}.values()
    largest = max((x.numel() for x in apart), default=0)
    entries = min((x.numel() for x in apart if 4 * x.numel() >= largest), default=0)
    return sum(x.numel() * x.element_size() for x in apart) / entries if entries else 0.0
