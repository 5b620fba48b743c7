"""Runs a step that can be repeated: first bare and timed, then under one instrument after the other.

If a pass fails, a note says so, and the other passes continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from autofuse.display.progress import ShowProgress
from autofuse.measure.timing import seconds_of, synchronize, without_garbage_collection
from autofuse.profiling.live.advice import readings
from autofuse.profiling.live.batch_size import batch_of, batch_of_calls
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.dcgm import Counters
from autofuse.profiling.live.layer_probe import growth_by_layer
from autofuse.profiling.live.measurements import Measurements
from autofuse.profiling.live.memory import PeakHoldings
from autofuse.profiling.live.nvml import metered
from autofuse.profiling.live.original_flops import is_rewritten, original_flops_of_workload
from autofuse.profiling.live.probe import probe_batch
from autofuse.profiling.live.record_budget import steps_to_record
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.live.roofline import total
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.waiting_times import WaitClock, WaitingTimes, rest_of, shares
from autofuse.profiling.live.workload import Workload
from autofuse.profiling.live.yardstick import yardstick
from autofuse.results.profile import Power, Probe

FEWEST, LONGEST = 8, 30.0  # fewest timed steps, and the seconds after which they are enough
METERED = 2.0  # seconds of steps during which power is measured


@dataclass(frozen=True)
class ProfilePasses:
    """The number of untimed, timed and recorded steps, and which of the other passes run."""

    warmup: int = 3
    steps: int = 20
    traced: int | None = None  # None: as many as fit a budget of time
    places: bool = True
    probe: bool = True
    samples: int | None = None
    tokens: int | None = None
    timed: tuple[float, ...] = ()  # seconds of steps that were timed already


def run_passes(workload: Workload, settings: ProfilePasses, show_progress: ShowProgress) -> Measurements:
    """Run all passes over one workload. Call `workload.look` before, so that its models are known."""
    found = Measurements(workload.name, "live", workload.device, workload.names)
    batch = batch_of(workload.inputs) if workload.inputs is not None else batch_of_calls(workload.calls.values())
    batch = batch.given(settings.samples, settings.tokens)
    found.samples, found.tokens = batch.samples, batch.tokens
    for _ in show_progress("warming up", range(settings.warmup), settings.warmup):
        workload.step()
    _time_steps(workload, settings, found, show_progress)
    passes: list[tuple[str, Callable[[Workload, ProfilePasses, Measurements], None]]] = [
        ("recording", _record_steps),
        ("counting", _count_operators),
        ("memory", _measure_memory),
        ("power", _measure_power),
    ]
    if settings.places:
        passes.append(("reading the model", _find_places))
    if settings.probe:
        passes.append(("doubling the batch", _probe_batch))
    for name, run in show_progress("instruments", passes, len(passes)):
        with _note_failure(found, name):
            run(workload, settings, found)
    return found


def _time_steps(workload: Workload, settings: ProfilePasses, found: Measurements, show_progress: ShowProgress) -> None:
    """Time whole steps, each with the yardstick next to it. Stop early if steps are very long."""
    if settings.timed:
        found.seconds = list(settings.timed)
        return
    measure, start, results = yardstick(found.device), time.perf_counter(), list[object]()
    waiting, waited = WaitClock(), list[WaitingTimes]()
    with without_garbage_collection(), waiting.clocked(), found.cores.measure_block():
        for done in show_progress("timing", range(settings.steps), settings.steps):
            if done >= FEWEST and time.perf_counter() - start > LONGEST:
                found.notes.append(f"Only {done} of {settings.steps} steps were timed, in {LONGEST:.0f} seconds.")
                break
            found.yardstick.append(measure())
            waiting.take()
            found.seconds.append(seconds_of(lambda: results.append(workload.step()), found.device))
            waited.append(waiting.take())
            results[-1] = results[-1].detach() if isinstance(results[-1], Tensor) else results[-1]  # drop the graph
    found.losses = _losses(results)
    found.shares = shares(waited, found.seconds, waiting, found.device)
    found.rest = rest_of(waited, found.seconds, found.shares)


def _losses(results: Sequence[object]) -> list[float]:
    """Return the losses: what the steps returned, if each returned one number; else nothing."""
    numbers = [r.item() if isinstance(r, Tensor) and r.numel() == 1 else r for r in results]
    return [float(n) for n in numbers if isinstance(n, (int, float))] if _are_numbers(numbers) else []


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _record_steps(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    with Recording(found.names, found.device) as recording:
        workload.step()  # recorded but not used: the profiler's first calls are slow
        with found.cores.measure_block():
            for _ in range(steps_to_record(settings.traced, found.seconds)):
                with recording.step():
                    workload.step()
    found.trace, found.save, found.cost = recording.trace, recording.save, recording.cost


def _count_operators(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    with Counting(found.names) as counting:
        workload.step()
    found.flops, found.own = counting.flops, counting.works(roofs(found.device))
    if is_rewritten(workload.models.values()):
        found.flops = found.flops.asked_by(original_flops_of_workload(workload))


def _measure_memory(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    with PeakHoldings(found.names, workload.optimizers, found.device, workload.inputs) as holding:
        workload.step()
    found.memory, found.held = holding.memory, holding.by_layer


def _measure_power(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    """Measure power and hardware counters during bare steps, long enough to read both several times."""
    if found.device.type != "cuda":
        found.power = Power(reason=f"it is read from NVIDIA GPUs (NVML), and the step ran on {found.device.type}")
        return
    uuid = str(torch.cuda.get_device_properties(found.device).uuid)
    steps = max(1, round(METERED / median(found.seconds)))
    synchronize(found.device)
    with Counters(uuid) as counters, metered(uuid) as meter:
        for _ in range(steps):
            workload.step()
        synchronize(found.device)
    found.power, found.counters = meter.power(steps, found.tokens), counters.levels()


def _find_places(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    found.readings = readings(workload.models, workload.calls)
    found.notes += [note for reading in found.readings for note in reading.notes]


def _probe_batch(workload: Workload, settings: ProfilePasses, found: Measurements) -> None:
    if workload.inputs is None or workload.run is None:
        found.probe = Probe(reason="The step was passed without its inputs, so its batch cannot be doubled: pass both.")
        return
    machine = roofs(found.device)
    work = replace(total(found.own.values()), seconds=median(found.seconds))
    found.probe = probe_batch(
        workload.run, workload.inputs, found.device, work=work, roof=machine.roof(found.flops.dtype)
    )
    if found.probe.ratio is not None:
        found.grown = growth_by_layer(workload.run, workload.inputs, found.names, found.device)


@contextmanager
def _note_failure(found: Measurements, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a failure of one instrument must not cost the other numbers
        found.notes.append(f"The pass for {name} failed and is left out: {type(error).__name__}: {error}")
