"""Monitor: utilisation of a running training, for each interval of steps, at the cost of microseconds a step.

A step reads a clock and adds to sums. Memory and utilisation are read, and figures are written, once in an interval.
The GPU is never synchronised: over an interval of many steps the host waits for the device's queue anyway, so the mean
time of a step is that of the device. Single steps of a GPU are host times.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import nn

from autofuse.monitoring.figures import IntervalFigures
from autofuse.monitoring.writers import JsonLines, Prometheus, Writer, active_writers
from autofuse.profiling.live.batch_size import Batch, batch_of
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.peaks import peak_of

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

T = TypeVar("T")
_LOG = logging.getLogger("autofuse")
_COUNTED_STEP = 2  # the first step also allocates, captures and compiles


class Monitor:
    """Measures a training loop and writes figures for each interval of steps.

        monitor = Monitor(model, "run.jsonl", flops="count")
        for batch in monitor.batches(loader):
            loss = train_step(batch)
            monitor.step(batch)
        monitor.close()

    Args:
        model: the trained module. Needed for `flops="count"`, and to find the device.
        writers: a path or a `Writer`, or several. A path that ends in `.prom` is kept in Prometheus' text format; any
            other path gets JSON lines. Active runs of Weights & Biases and MLflow also get the figures if
            `use_active_runs` is True.
        every: steps in an interval.
        flops: model FLOPs of one step on this process. "count" counts the second step as it runs: that one step takes
            about twice as long, compiled code runs eagerly in it, and it belongs to no interval.
        peak_flops: peak FLOP/s of the device in the dtype of the training. None takes the data sheet's figure for
            `dtype`, if the device is known.
        dtype: the dtype that matrix products run in, as "bfloat16", for the data sheet's peak. None with
            `flops="count"` takes the dtype of most counted FLOPs.
        use_active_runs: see `writers`.

    A writer that raises is dropped with a warning: a monitor does not end a training.

    Attributes:
        last: figures of the last finished interval, or None.
    """

    # Of the interval that runs: its start, the start of its step, and what was added up so far.
    _began: float
    _step_began: float
    _cpu_began: float
    _in_interval: int
    _shortest: float
    _longest: float
    _waited: float | None
    _sums: dict[str, int | None]

    def __init__(
        self,
        model: nn.Module | None = None,
        writers: Writer | str | os.PathLike[str] | Sequence[Writer | str | os.PathLike[str]] = (),
        *,
        every: int = 50,
        flops: float | str | None = None,
        peak_flops: float | None = None,
        dtype: str | None = None,
        use_active_runs: bool = True,
    ) -> None:
        if every < 1:
            raise ValueError(f"An interval has at least one step; got every={every}. Pass 1 or more.")
        if isinstance(flops, str) and flops != "count":
            raise ValueError(f'flops is a number, "count" or None; got {flops!r}.')
        if flops == "count" and model is None:
            raise ValueError('flops="count" needs the model.')
        self.writers: list[Writer] = _writers(writers)
        if use_active_runs:
            self.writers += active_writers()
        self.model, self.every, self.peak_flops, self.dtype = model, every, peak_flops, dtype
        self.last: IntervalFigures | None = None
        self.steps = 0
        self._flops = None if isinstance(flops, str) else flops
        self._counts = flops == "count"
        self._counting: tuple[ExitStack, Counting] | None = None
        self._device: torch.device | None = None
        self._begin_interval(time.perf_counter())

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields the loader's batches and measures how long the loop waits for them."""
        iterator = iter(loader)
        while True:
            start = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waited = (self._waited or 0.0) + time.perf_counter() - start
            yield batch

    def step(self, batch: Any = None, *, samples: int | None = None, tokens: int | None = None) -> None:
        """Ends a step: call it after `optimizer.step()`.

        Args:
            batch: what the model was called with in this step. Samples and tokens are read from its shapes.
            samples: the number of samples of this step in this process, instead of the batch's.
            tokens: the number of tokens of this step in this process, instead of the batch's.
        """
        now = time.perf_counter()
        self.steps += 1
        if self._counts and self.steps <= _COUNTED_STEP:
            self._count_flops()
            return
        taken = now - self._step_began
        self._step_began = now
        self._shortest, self._longest = min(self._shortest, taken), max(self._longest, taken)
        size = batch_of(batch) if batch is not None and (samples is None or tokens is None) else Batch()
        self._add_to_sum("samples", samples if samples is not None else size.samples)
        self._add_to_sum("tokens", tokens if tokens is not None else size.tokens)
        self._in_interval += 1
        if self._in_interval >= self.every:
            self._finish_interval(now)

    def close(self) -> None:
        """Writes the unfinished interval, if it has steps, and closes the writers. A second call has no effect."""
        self._stop_counting()
        if self._in_interval:
            self._finish_interval(time.perf_counter())
        writers, self.writers = self.writers, []
        for writer in writers:
            self._warn_if_fails(writer.close)

    def _add_to_sum(self, what: str, amount: int | None) -> None:
        """Adds to a sum; one step that does not say leaves the interval's sum unknown."""
        known = self._sums[what]
        self._sums[what] = None if amount is None or known is None else known + amount

    def _begin_interval(self, now: float) -> None:
        self._began = self._step_began = now
        self._cpu_began = time.process_time()
        self._in_interval, self._shortest, self._longest = 0, float("inf"), 0.0
        self._waited = None
        self._sums = {"samples": 0, "tokens": 0}

    def _finish_interval(self, now: float) -> None:
        seconds, steps = now - self._began, self._in_interval
        device = self._find_device()
        flops = None if self._flops is None else self._flops * steps / seconds
        peak = self.peak_flops or self._known_peak(device)
        rates = {name: None if total is None else total / seconds for name, total in self._sums.items()}
        self.last = IntervalFigures(
            self.steps, steps, seconds, seconds / steps, self._shortest, self._longest,
            None if self._waited is None else self._waited / seconds,
            (time.process_time() - self._cpu_began) / seconds / len(_cores()), _device_share(device),
            rates["samples"], rates["tokens"], flops, flops / peak if flops and peak else None, _memory(device),
            _name(device),
        )  # fmt: skip
        for writer in tuple(self.writers):
            if not self._warn_if_fails(writer.write, self.last):
                self.writers.remove(writer)
        self._begin_interval(time.perf_counter())

    def _warn_if_fails(self, action: Any, *args: Any) -> bool:
        try:
            action(*args)
        except Exception as error:
            _LOG.warning("%s of a monitor's writer raised %s and is not called again.", action.__qualname__, error)
            return False
        return True

    def _find_device(self) -> torch.device:
        if self._device is None:
            parameter = None if self.model is None else next(self.model.parameters(), None)
            cuda = "cuda" if torch.cuda.is_available() else "cpu"
            self._device = torch.device(cuda) if parameter is None else parameter.device
        return self._device

    def _known_peak(self, device: torch.device) -> float | None:
        known = peak_of(_name(device)) if device.type == "cuda" and self.dtype else None
        return None if known is None else known.flops.get(self.dtype or "")

    # One step is counted between two calls of `step`.

    def _count_flops(self) -> None:
        if self.steps < _COUNTED_STEP:
            assert self.model is not None
            stack = ExitStack()
            counting = stack.enter_context(Counting(ModuleNames({"": self.model})))
            self._counting = stack, counting
            return
        counting = self._stop_counting()
        self._counts = False
        self._flops = float(counting.flops.model or 0) or None if counting is not None else None
        if counting is not None and self.dtype is None:
            self.dtype = counting.flops.dtype or None
        self._begin_interval(time.perf_counter())

    def _stop_counting(self) -> Any:
        if self._counting is None:
            return None
        stack, counting = self._counting
        self._counting = None
        stack.close()
        return counting


def _writers(given: Writer | str | os.PathLike[str] | Sequence[Writer | str | os.PathLike[str]]) -> list[Writer]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [_writer(one) for one in given]
    return [_writer(given)]


def _writer(given: Writer | str | os.PathLike[str]) -> Writer:
    if not isinstance(given, (str, os.PathLike)):
        return given
    return Prometheus(given) if os.fspath(given).endswith(".prom") else JsonLines(given)


def _cores() -> Sequence[int] | set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)  # not reset: the program may read its own peak
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_share(device: torch.device) -> float | None:
    """NVML's share; None on a CPU, and if NVML or its package is missing."""
    if device.type != "cuda":
        return None
    try:
        return float(torch.cuda.utilization(device)) / 100
    except Exception:  # pynvml raises errors of its own
        return None


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
