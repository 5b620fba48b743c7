"""Takes a running program's steps through a profile: which are timed, and which run under which instrument.

step_boundaries.py finds where steps end, and program.py runs the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
from torch import nn

from autofuse.display.progress import ShowProgress, quietly
from autofuse.measure.compare import device_of
from autofuse.measure.timing import synchronize
from autofuse.profiling.live.advice import readings
from autofuse.profiling.live.batch_size import Batch, batch_of_calls
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.dcgm import Counters
from autofuse.profiling.live.measurements import Measurements
from autofuse.profiling.live.memory import PeakHoldings
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.nvml import metered
from autofuse.profiling.live.original_flops import as_written, is_rewritten
from autofuse.profiling.live.passes import FEWEST, LONGEST, METERED
from autofuse.profiling.live.ranks import this_rank
from autofuse.profiling.live.record_budget import MOST, steps_to_record
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.root_models import has_parameters
from autofuse.profiling.live.step_models import ScriptRoots
from autofuse.profiling.live.waiting_times import WaitClock, WaitingTimes, rest_of, shares
from autofuse.profiling.live.yardstick import yardstick
from autofuse.results.profile import Power, Probe, Profile
from autofuse.torch_private.nested import tensors_in

_NO_PROBE = (
    "a script makes its own batches, so they cannot be doubled: profile a function that returns a model and its inputs "
    "(module:factory), or call autofuse.profile"
)
_Instrument = TypeVar("_Instrument")


@dataclass(frozen=True)
class Schedule:
    """The number of steps of each kind.

    samples, tokens: of one step, from the user.
    """

    warmup: int = 5
    timed: int = 20
    traced: int | None = None  # None: as many as fit a budget of time
    samples: int | None = None
    tokens: int | None = None

    @property
    def steps(self) -> int:
        """The number of steps of a whole profile.

        It includes the first step, which sets things up, and steps for the recorder, counting and memory. A rewritten
        model needs one more.
        """
        return 1 + max(1, self.warmup) + self.timed + 1 + (MOST if self.traced is None else self.traced) + 2


class Finished(BaseException):
    """The profile is complete, so the program may end. Not an Exception, so that the program's handlers let it pass."""


class Conductor:
    """Receives the ends of steps, and switches the instruments. `profile` is None until everything is measured.

    If the program ends early, after some timed steps, `profile` has what was measured.
    """

    def __init__(
        self,
        schedule: Schedule,
        name: str,
        profile_of: Callable[[Measurements, bool], Profile],
        show_progress: ShowProgress = quietly,
        to_the_end: bool = False,
    ) -> None:
        """Prepare a profile.

        Args:
            schedule: The number of steps of each kind.
            name: The program's name.
            profile_of: Called as profile_of(measured, together). If all went well, it is called while the program still
                runs, at the same step as in the other processes of its job (`together`); else after the program has
                ended.
            show_progress: Shows the progress.
            to_the_end: Whether the program runs to its end after the profile is complete.
        """
        self.schedule, self.name, self.show_progress, self.to_the_end = schedule, name, show_progress, to_the_end
        self.waiting = WaitClock()
        self.profile: Profile | None = None
        self._profile_of = profile_of
        self.measured: Measurements | None = None
        self.roots = ScriptRoots()
        self.complete = False  # everything is measured
        self.failure: Exception | None = None  # autofuse's own failure, raised after the program
        self.heard = 0
        self._phases: Generator[None, None, None] | None = None

    def ended(self) -> None:
        """A step has ended. Raises Finished after the last one that is needed, and again if the program continues."""
        self.heard += 1
        if self.complete:
            return self._finish()
        self._phases = self._phases or self._profile_phases()  # the first step sets things up and does not count
        try:
            self.complete = next(self._phases, self) is self
        except Exception as error:  # this is an error of autofuse, not of the program
            self.complete, self.failure = True, error
        if self.complete:
            self._finish()

    def restart(self) -> None:
        """The counted events were not steps: discard the measurements and start again."""
        if not self.complete:
            self._close_phases()
            self._phases, self.measured, self.roots = None, None, ScriptRoots()

    def close(self) -> None:
        """The program has ended. Turn off the active instrument, and build a profile of what was measured."""
        self._close_phases()
        if self.measured is not None and len(self.measured.seconds) > 1 and not self.complete:
            self.measured.notes.append("The program ended before everything was measured.")
            self.profile = self._profile_of(self.measured, False)

    def _close_phases(self) -> None:
        if self._phases is not None:
            self._phases.close()

    def _finish(self) -> None:
        if not self.to_the_end:
            raise Finished

    def _profile_phases(self) -> Generator[None, None, None]:
        """Measure one kind of data after the other. Each yield lets the program run one step."""
        for _ in self.show_progress("warmup", range(self.schedule.warmup - 1), self.schedule.warmup - 1):
            yield
        with self.roots.watching():
            yield
        self.measured = self._new_measurements()
        yield from self._time_steps(self.measured)
        yield from self._record_steps(self.measured)
        yield from self._count_steps(self.measured)
        yield from self._measure_memory(self.measured)
        yield from self._measure_power(self.measured)
        self._find_places(self.measured)
        self.profile = self._profile_of(self.measured, True)

    def _new_measurements(self) -> Measurements:
        self.roots.drop_graphs()
        models = self.roots.models
        given = tuple(tensors_in(tuple(self.roots.calls.values())))
        devices = [device_of(model, given) for model in (*models.values(), nn.Identity())]
        device = next((found for found in devices if found.type != "cpu"), torch.device("cpu"))
        return Measurements(self.name, "script", device, ModuleNames(models), probe=Probe(reason=_NO_PROBE))

    def _time_steps(self, measured: Measurements) -> Iterator[None]:
        device, waited = measured.device, list[WaitingTimes]()
        stick = yardstick(device)
        began = time.perf_counter()
        for done in self.show_progress("timing", range(self.schedule.timed), self.schedule.timed):
            if done >= FEWEST and time.perf_counter() - began > LONGEST and this_rank() is None:
                measured.notes.append(f"{done} steps were timed: they took {LONGEST:.0f} seconds.")
                break
            synchronize(device)
            self.waiting.take()
            start = time.perf_counter()
            with measured.cores.measure_block():
                yield
                synchronize(device)
            measured.seconds.append(time.perf_counter() - start)
            waited.append(self.waiting.take())
            if not self.waiting.prefetching:  # other threads would fetch data during the pause
                measured.yardstick.append(stick())
            measured.shares = shares(waited, measured.seconds, self.waiting, device)
            measured.rest = rest_of(waited, measured.seconds, measured.shares)
            batch = self._batch(waited)
            measured.samples, measured.tokens = batch.samples, batch.tokens
        if len(measured.yardstick) != len(measured.seconds):
            measured.yardstick.clear()

    def _batch(self, waited: list[WaitingTimes]) -> Batch:
        """Return the batch of a step: from the data loader, else from the model's call, once for each backward pass."""
        batch = batch_of_calls(call for model, call in self.roots.calls.items() if has_parameters(model))
        loaded = [w.samples for w in waited]
        if batch.samples and all(n is not None for n in loaded) and any(loaded):
            samples = round(sum(n or 0 for n in loaded) / len(loaded))
            tokens = None if batch.tokens is None else round(batch.tokens / batch.samples * samples)
            batch = Batch(samples, tokens, "what torch's DataLoader gave in a step")
        elif (
            len(self.roots.optimizers) == 1 and not self.waiting.closures
        ):  # LBFGS evaluates one batch several times in a step
            batch = batch.times(max(1, self.roots.backwards))
        return batch.given(self.schedule.samples, self.schedule.tokens)

    def _record_steps(self, measured: Measurements) -> Iterator[None]:
        with self._with_instrument(
            measured, "recording", lambda: Recording(measured.names, measured.device)
        ) as recording:
            yield  # recorded but not used: the recorder's first calls are slow
            count = steps_to_record(self.schedule.traced, measured.seconds)
            for _ in self.show_progress("recording", range(count), count):
                for one in recording:
                    one.next_step()
                with measured.cores.measure_block():
                    yield
        for one in recording:
            measured.trace, measured.save, measured.cost = one.trace, one.save, one.cost

    def _count_steps(self, measured: Measurements) -> Iterator[None]:
        with self._with_instrument(measured, "counting", lambda: Counting(measured.names)) as counting:
            yield
        for one in counting:
            measured.flops, measured.own = one.flops, one.works(roofs(measured.device))
        models = measured.names.models.values()
        if not is_rewritten(models):
            return
        name = "counting the original"
        with as_written(models), self._with_instrument(measured, name, lambda: Counting(measured.names)) as counting:
            yield
        for one in counting:
            measured.flops = measured.flops.asked_by(one.flops)

    def _measure_memory(self, measured: Measurements) -> Iterator[None]:
        def holding_all() -> PeakHoldings:
            return PeakHoldings(measured.names, self.roots.optimizers, measured.device, list(self.roots.calls.values()))

        with self._with_instrument(measured, "memory", holding_all) as holding:
            yield
        for one in holding:
            measured.memory, measured.held = one.memory, one.by_layer

    def _measure_power(self, measured: Measurements) -> Iterator[None]:
        """Measure power and hardware counters during bare steps, long enough to read both several times."""
        if measured.device.type != "cuda":
            kind = measured.device.type
            measured.power = Power(reason=f"it is read from NVIDIA GPUs (NVML), and the steps ran on {kind}")
            return
        uuid = str(torch.cuda.get_device_properties(measured.device).uuid)
        alone = this_rank() is None  # ranks go through the same steps
        steps = max(1, round(METERED / median(measured.seconds))) if alone else self.schedule.timed
        with self._with_instrument(measured, "counters", lambda: Counters(uuid)) as counters:
            synchronize(measured.device)
            with self._with_instrument(measured, "power", lambda: metered(uuid)) as meters:
                for _ in self.show_progress("power", range(steps), steps):
                    yield
                synchronize(measured.device)
        for counter in counters:
            measured.counters = counter.levels()
        for meter in meters:
            measured.power = meter.power(steps, measured.tokens)

    def _find_places(self, measured: Measurements) -> None:
        """Find which rules apply in the models, as they were called in the observed step."""
        for _ in self.show_progress("reading the model", range(1), 0):
            try:
                measured.readings = readings(self.roots.called_models(measured.names), self.roots.calls)
            except Exception as error:
                measured.notes.append(f"The model could not be read for rules: {type(error).__name__}: {error}")
        measured.notes += [note for reading in measured.readings for note in reading.notes]

    @contextmanager
    def _with_instrument(
        self, measured: Measurements, what: str, make: Callable[[], AbstractContextManager[_Instrument]]
    ) -> Iterator[list[_Instrument]]:
        """Yield an instrument, alone in a list. If it fails, the list is empty, and the program goes on."""
        made: list[_Instrument] = []
        stack = ExitStack()

        def failed(error: Exception) -> None:
            made.clear()
            measured.notes.append(f"The pass of {what} failed: {type(error).__name__}: {error}")

        try:
            made.append(stack.enter_context(make()))
        except Exception as error:
            failed(error)
        try:
            yield made
        finally:
            try:
                stack.close()
            except Exception as error:
                failed(error)
