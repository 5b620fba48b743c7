"""Measures the power of an NVIDIA GPU while steps run, with NVML (the package nvidia-ml-py, imported as pynvml).

From Volta on, NVML counts a GPU's energy (nvmlDeviceGetTotalEnergyConsumption, millijoules). On older GPUs, its power
(nvmlDeviceGetPowerUsage, milliwatts) is read repeatedly.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from types import ModuleType
from typing import Any

from autofuse.results.profile import Power

SECONDS = 0.05  # between readings
_INSTALL = "install nvidia-ml-py to measure it"


class Meter:
    """The readings of a block of `metered`."""

    def __init__(self) -> None:
        self.reason = ""
        self.watts: list[float] = []
        self.joules: float | None = None
        self.seconds = 0.0

    def power(self, steps: int, tokens: int | None = None) -> Power:
        """Return the mean power over the block, which contained `steps` steps of `tokens` tokens each."""
        if self.reason:
            return Power(reason=self.reason)
        joules, source = self.joules, "NVML's energy counter"
        if not joules:  # the counter changes about ten times a second, so it may not change in a short block
            if not self.watts or self.seconds <= 0:
                return Power(reason="NVML gave no reading: the steps were too short")
            joules, source = fmean(self.watts) * self.seconds, f"NVML, {len(self.watts)} readings of power"
        each = joules / max(1, steps)
        watts = joules / self.seconds if self.seconds > 0 else None
        return Power(watts, each, None if tokens is None or not each else tokens / each, source)


@contextmanager
def metered(uuid: str) -> Iterator[Meter]:
    """Measure one GPU's power in the block. The device must be idle at the start and the end.

    uuid: the GPU's, from torch.cuda.get_device_properties(device).uuid. If NVML is missing or refuses, nothing is
    raised, and the meter says why.
    """
    meter = Meter()
    library = _load_library(meter)
    handle = None if library is None else _device_handle_of(library, uuid, meter)
    if library is None or handle is None:
        yield meter
        return
    stop = threading.Event()
    reader = threading.Thread(target=_read_power_repeatedly, args=(library, handle, meter, stop), daemon=True)
    before, began = _joules_since_start(library, handle), time.perf_counter()
    reader.start()
    try:
        yield meter
    finally:
        meter.seconds = time.perf_counter() - began
        after = _joules_since_start(library, handle)
        stop.set()
        reader.join()
        meter.joules = None if before is None or after is None else after - before
        library.nvmlShutdown()


def _load_library(meter: Meter) -> ModuleType | None:
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        meter.reason = f"the Python package pynvml is not installed: {_INSTALL}"
        return None
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        meter.reason = f"NVML does not answer ({error}): it comes with NVIDIA's driver"
        return None
    return library


def _device_handle_of(library: ModuleType, uuid: str, meter: Meter) -> Any:
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    try:
        return library.nvmlDeviceGetHandleByUUID(name)
    except library.NVMLError as error:
        meter.reason = f"NVML does not know the GPU {name} ({error})"
        library.nvmlShutdown()
        return None


def _joules_since_start(library: ModuleType, handle: Any) -> float | None:
    """Return the joules since the driver was loaded."""
    try:
        return float(library.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except library.NVMLError:
        return None


def _read_power_repeatedly(library: ModuleType, handle: Any, meter: Meter, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            meter.watts.append(float(library.nvmlDeviceGetPowerUsage(handle)) / 1000)
        except library.NVMLError:
            return
        stop.wait(SECONDS)
