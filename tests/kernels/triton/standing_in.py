"""What stands in for a GPU and its kernels: a driver of two devices, and kernels that say where they were launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import triton

from tools.ahead.absent import Absent, absent
from tools.ahead.targets import TARGETS


class Kernel(triton.runtime.jit.JITFunction):  # type: ignore[misc]
    """In place of a compiled kernel: `launched` has the device, whether it was a warmup, and the named arguments."""

    def __init__(self, driver: Absent, error: Exception | None = None) -> None:
        self.driver, self.error = driver, error
        self.fn = SimpleNamespace(__name__="kernel")
        self.pre_run_hooks: list[Any] = []
        self.launched: list[tuple[int, bool, dict[str, Any]]] = []

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        self.launched.append((self.driver.current, warmup, named))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(run=None) if warmup else None


class _NoDriver:
    """No driver, as before, except that kernels of the stand-in can be freed later."""

    @property
    def utils(self) -> _NoDriver:
        return self

    def unload_module(self, module: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(triton.runtime.driver.default, name)  # raises Triton's error about an absent driver


@contextmanager
def two_devices() -> Iterator[Absent]:
    """A driver of two NVIDIA devices; tensors on the meta device lie on the one that is not current."""
    usual = getattr(triton.runtime.driver, "_active", None)
    with absent(TARGETS[90].gpu, 3) as driver:
        yield driver
    triton.runtime.driver.set_active(_NoDriver() if usual is None else usual)
