"""A Triton driver for a GPU that is not present, with two devices: one is current, and the tensors are on the other.

So it finds a kernel that is launched without entering the device of its tensors: it runs on the wrong device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from autofuse.kernels.devices import treat_meta_as
from tools.ahead.targets import KIB, TARGETS, THREADS


class Absent:
    """The part of a driver that compilation needs.

    Each target has other device numbers, because Triton caches by them.
    """

    def __init__(self, target: GPUTarget, number: int) -> None:
        self.target = target
        self.elsewhere, self.home = 2 * number, 2 * number + 1
        self.current = self.elsewhere
        self.streams: list[int] = []  # devices whose stream was asked for

    @property
    def utils(self) -> Absent:
        return self

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        """Load a compiled kernel: return module, function, registers, spills, and the maximum number of threads."""
        return object(), object(), 32, 0, THREADS

    def unload_module(self, module: object) -> None:
        """Free a compiled kernel. Triton 3.8 and later call it when a kernel is deleted."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        shared = next((t.block_shared for t in TARGETS.values() if t.gpu == self.target), 227 * KIB)
        return {"max_shared_mem": shared, "multiprocessor_count": 132, "warpSize": self.target.warp_size}

    def launcher_cls(self, source: object, metadata: object) -> object:
        return object()

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.current

    def set_current_device(self, device: int) -> None:
        self.current = device

    def get_current_stream(self, device: int) -> int:
        self.streams.append(device)
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.target.arch, 10) if isinstance(self.target.arch, int) else (9, 0)

    @contextmanager
    def entered(self, device: Any) -> Iterator[None]:
        """The counterpart of torch.cuda.device."""
        before, self.current = self.current, getattr(device, "index", device)
        try:
            yield
        finally:
            self.current = before


@contextmanager
def absent(target: GPUTarget, number: int) -> Iterator[Absent]:
    """In the block, tensors on the meta device are on the device `home` of such a driver, and `elsewhere` is current.

    The driver stays active afterwards, because a process that compiles ahead of time launches nothing.
    """
    own = Absent(target, number)
    guard = torch.cuda.device
    driver.set_active(own)
    torch.cuda.device = own.entered
    try:
        with treat_meta_as(torch.device("cuda", own.home)):
            yield own
    finally:
        torch.cuda.device = guard
