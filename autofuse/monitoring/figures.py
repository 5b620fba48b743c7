"""The figures that a monitor measures in one interval of steps, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class IntervalFigures:
    """Figures of one interval on this process. None means that the figure is not known.

    Attributes:
        step: number of the last step of the interval, counted from 1.
        steps: steps in the interval.
        seconds: wall-clock seconds of the interval.
        step_seconds: mean seconds of a step.
        step_seconds_low, step_seconds_high: the shortest and the longest step of the interval, on the host's clock.
        loader_share: part of the interval in which the loop waited for batches, 0 to 1. Needs `Monitor.batches`.
        host_share: CPU seconds of this process per wall-clock second and core that it may use, 0 to 1.
        device_share: part of the recent time in which a kernel ran on the GPU, 0 to 1, by NVML.
        samples_per_second, tokens_per_second: of this process.
        flops_per_second: model FLOPs, without recomputation.
        mfu: model FLOPs utilisation: flops_per_second / peak FLOP/s of the device, 0 to 1.
        memory_bytes: most bytes allocated on the GPU since the program last reset torch's peak; on a CPU the most that
            the process ever had, None on Windows.
        device: name of the device.
    """

    step: int
    steps: int
    seconds: float
    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    loader_share: float | None = None
    host_share: float | None = None
    device_share: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    device: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Every field under its own name."""
        return asdict(self)

    def numbers(self) -> dict[str, float]:
        """The figures that are known, by name, without `step` and `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("step", "device")}
        return {name: float(value) for name, value in values.items() if value is not None}
