"""The peak speeds of this machine: matrix products, memory and caches, special functions, launching.

Accelerators with a data sheet in autofuse/profiling/peaks.py use it. Everything else, and every CPU, is measured on
this machine, in less than two seconds and once for each setting. Other programs only slow a measurement down. So the
fastest run counts. It may be below what the machine can do, never above.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autofuse.measure.environment import processor
from autofuse.measure.timing import seconds_of
from autofuse.profiling.peaks import DevicePeak, peak_of
from autofuse.results.profile import Roof
from autofuse.torch_private import disable_current_modes

HERE = "measured on this machine"
_BUDGET = 0.08  # time budget of each measurement, in seconds
_FEWEST = 3  # runs of each measurement
_LOCK = threading.RLock()
_KNOWN: dict[tuple[str, int, str], Roofs] = {}

Rate = Callable[[str], float]


@dataclass
class Roofs:
    """The roofs of one device. `roofs(device)` returns those of this machine; construct others for what-if questions.

    name: the device's.
    bandwidths: pairs of bytes and bytes per second, the smallest first. An operator that touches at least so many bytes
    moves them no faster. The last pair is the memory's, the others are those of caches.
    special: exponentials per second, float32.
    launch: seconds of the smallest operator.
    known: FLOP/s of matrix products by dtype. `measure` adds missing ones.
    flops_source, bytes_source: where the numbers come from.
    """

    name: str
    bandwidths: tuple[tuple[int, float], ...]
    special: float
    launch: float
    known: dict[str, float] = field(default_factory=dict)
    measure: Rate | None = None
    flops_source: str = HERE
    bytes_source: str = HERE

    def __post_init__(self) -> None:
        self._given_dtypes = frozenset(self.known)

    @property
    def bytes(self) -> float:
        """Bytes per second of the memory."""
        return self.bandwidths[-1][1]

    @property
    def cached_bytes(self) -> float | None:
        """Bytes per second of the fastest cache; None if only the memory is known."""
        return max(rate for _, rate in self.bandwidths) if len(self.bandwidths) > 1 else None

    def flops(self, dtype: torch.dtype | str) -> float:
        """Return the FLOP/s of matrix products in `dtype`: two FLOPs for each pair of entries.

        Raises:
            KeyError: The rate of this dtype is unknown and cannot be measured.
        """
        name = str(dtype).removeprefix("torch.")
        if name not in self.known:
            if self.measure is None:
                raise KeyError(f"How fast {self.name} multiplies matrices of {name} is not known.")
            try:
                self.known[name] = self.measure(name)
            except RuntimeError as error:  # torch has no plain product of this dtype, for example of 8 bits
                raise KeyError(f"Matrices of {name} cannot be multiplied to measure it here: {error}") from error
        return self.known[name]

    def bandwidth(self, touched: int) -> float:
        """Return the most bytes per second for an operator that touches so many bytes: few bytes may be in a cache."""
        fitting = [rate for size, rate in self.bandwidths if size <= touched]
        return fitting[-1] if fitting else self.bandwidths[0][1]

    def seconds(self, flops: int, bytes: int, dtype: str) -> float:
        """Return the least seconds of an operator: t >= max(F / P, B / BW). If no peak is known, only the bytes count.

        Source: the roofline model (Williams, Waterman, Patterson, "Roofline: an insightful visual performance model",
        CACM 2009).
        """
        with suppress(KeyError):
            return max(flops / self.flops(dtype) if flops else 0.0, bytes / self.bandwidth(bytes))
        return bytes / self.bandwidth(bytes)

    def roof(self, dtype: str) -> Roof:
        """Return the roof in the form of a profile."""
        name = dtype or "float32"
        try:
            peak, source = self.flops(name), self.source_of(name)
        except KeyError as error:
            peak, source = None, str(error.args[0])
        return Roof(
            peak, self.bytes, name, self.name, source, self.bytes_source, HERE in (source, self.bytes_source),
            self.cached_bytes,
        )  # fmt: skip

    def source_of(self, dtype: str) -> str:
        """Return where the FLOP/s in that dtype come from."""
        return self.flops_source if dtype in self._given_dtypes else HERE

    def measure_again(self, dtype: str) -> None:
        """Measure the products of `dtype` again and keep the better result: the machine may have been busy before."""
        if self.measure is not None and self.source_of(dtype) == HERE:
            self.known[dtype] = max(self.known.get(dtype, 0.0), self.measure(dtype))


def roofs(device: torch.device | str = "cpu") -> Roofs:
    """Return the roofs of a device of this machine, for the current threads and rounding of float32 products."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    key = str(device), torch.get_num_threads(), _float32_precision(device)
    with _LOCK:
        if key not in _KNOWN:
            with _without_modes():
                _KNOWN[key] = _measure_roofs(device)
        return _KNOWN[key]


def _float32_precision(device: torch.device) -> str:
    """Return the precision of float32 products. If they may be rounded to bfloat16, their peak differs."""
    try:
        return torch.get_float32_matmul_precision()
    except (
        RuntimeError
    ):  # torch raises it if the program set the precision of a backend, as in torch.backends.cuda.matmul.fp32_precision
        backend = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
        return str(getattr(backend.matmul, "fp32_precision", ""))


def _measure_roofs(device: torch.device) -> Roofs:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    peak = peak_of(name) if device.type == "cuda" else None
    if peak is not None:
        return _roofs_of_data_sheet(device, name, peak)
    name = processor() if device.type == "cpu" else name
    return Roofs(
        name,
        _bandwidths(device),
        _exponential_rate(device),
        _launch_seconds(device),
        measure=lambda d: _product_rate(device, d),
    )


def _roofs_of_data_sheet(device: torch.device, name: str, peak: DevicePeak) -> Roofs:
    return Roofs(
        name, ((0, peak.bytes_per_second),), _exponential_rate(device), _launch_seconds(device), dict(peak.flops),
        lambda d: _product_rate(device, d), peak.source, peak.source,
    )  # fmt: skip


# Measurements.


def _product_rate(device: torch.device, dtype: str) -> float:
    """Return the FLOP/s of square products. The sizes grow while a product takes little time."""
    kind = getattr(torch, "float32" if dtype == "tensorfloat32" else dtype)
    best, started = 0.0, time.perf_counter()
    with _LOCK, _without_modes():
        for n in (256, 512, 1024) if device.type == "cpu" else (2048, 4096, 8192):
            a, b = (torch.rand(n, n, device=device, generator=_separate_generator(device)).to(kind) for _ in range(2))
            seconds = _fastest_run(partial(torch.mm, a, b), device, 10 if device.type != "cpu" else 1)
            best = max(best, 2 * n**3 / seconds)
            if seconds > _BUDGET / 4 or time.perf_counter() - started > 3 * _BUDGET:
                break
    return best


def _bandwidths(device: torch.device) -> tuple[tuple[int, float], ...]:
    """Return bandwidths at growing sizes. Each is at least that of larger sizes: small data fits every cache."""
    most = _bytes_beyond_caches(device)
    sizes = [2**18, 2**21, 2**24, most] if device.type == "cpu" else [most]
    found: list[tuple[int, float]] = []
    for size in reversed(sizes):
        rate = _bandwidth(device, size)
        found.append((size, max([rate, *(r for _, r in found)])))
    return tuple(reversed(found))


def _bandwidth(device: torch.device, touched: int) -> float:
    """Return bytes read and written per second: the better of a copy and a sum of two vectors into a third."""
    repeats = 10 if device.type != "cpu" else 1
    x, y = torch.ones(2, touched // 8, device=device)
    copied = 2 * x.nbytes / _fastest_run(partial(y.copy_, x), device, repeats)
    x, y, z = torch.ones(3, touched // 12, device=device)
    added = 3 * x.nbytes / _fastest_run(partial(torch.add, x, y, out=z), device, repeats)
    return float(max(copied, added))


def _exponential_rate(device: torch.device) -> float:
    n = 2**16 * (torch.get_num_threads() if device.type == "cpu" else 256)
    x = torch.linspace(-4, 4, n, device=device)
    y = torch.empty_like(x)
    return n / _fastest_run(lambda: torch.exp(x, out=y), device)


def _launch_seconds(device: torch.device) -> float:
    """Return the seconds of a small operator with gradients on, as in a forward."""
    x = torch.ones(1, device=device, requires_grad=True)

    def many() -> None:
        with torch.enable_grad():
            for _ in range(100):
                torch.add(x, x)

    return _fastest_run(many, device) / 100


def _fastest_run(action: Callable[[], Any], device: torch.device, repeats: int = 1) -> float:
    """Return the seconds of the fastest of several runs, each with `repeats` actions in a queue.

    On a CPU one thread is tried, too: if other programs use its cores, threads that wait for each other may be slower.
    """

    def run() -> None:
        for _ in range(repeats):
            action()

    alone = device.type == "cpu" and torch.get_num_threads() > 1
    best = math.inf
    for threads in (torch.get_num_threads(), *([1] if alone else [])):
        with _torch_threads(threads) if alone else nullcontext():
            run()
            until, count = time.perf_counter() + _BUDGET / (2 if alone else 1), 0
            while count < _FEWEST or time.perf_counter() < until:
                best = min(best, seconds_of(run, device) / repeats)
                count += 1
                if time.perf_counter() > until + 2 * _BUDGET:
                    break
    return best


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_modes() -> Iterator[None]:
    """Turn off gradients, autocast, and modes that intercept operators."""
    modes = disable_current_modes()
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), modes:
        yield


def _separate_generator(device: torch.device) -> torch.Generator:
    """Return a separate generator, so that the caller's random numbers do not change."""
    return torch.Generator(device).manual_seed(0)


def _bytes_beyond_caches(device: torch.device) -> int:
    """Return more bytes than any cache holds: four times the largest, as STREAM requires (McCalpin, 1995)."""
    if device.type != "cpu":
        return 2**29
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text[:-1].isdigit() and text[-1:] in "KM":
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]])
    return min(max(2**27, 4 * max(sizes, default=0)), 2**30)
