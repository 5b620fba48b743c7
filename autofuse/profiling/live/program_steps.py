"""Takes a running program's steps through a profile: which are timed, and which run under which instrument.

Knows the instruments' order; must not know where steps end (step_boundaries.py) or what the program is (program.py).
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

from autofuse.display.progress import Tell, quietly
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
from autofuse.profiling.live.waiting_times import Waiting, WaitingTimes, rest_of, shares
from autofuse.profiling.live.yardstick import yardstick
from autofuse.results.profile import Power, Probe, Profile
from autofuse.torch_private.nested import tensors_in

_NO_PROBE = (
    "a script's batch is its own, and is not doubled: profile a function that returns a model and its inputs "
    "(module:factory), or call autofuse.profile"
)
_Instrument = TypeVar("_Instrument")


@dataclass(frozen=True)
class Schedule:
    """How many steps of each kind. samples, tokens: of one step, by somebody who knows."""

    warmup: int = 5
    timed: int = 20
    traced: int | None = None  # as many as fit a budget of time
    samples: int | None = None
    tokens: int | None = None

    @property
    def steps(self) -> int:
        """Of a whole profile: the first one, which sets things up, and those for the recorder, counting and memory; one
        more where autofuse has rewritten a model."""
        return 1 + max(1, self.warmup) + self.timed + 1 + (MOST if self.traced is None else self.traced) + 2


class Finished(BaseException):
    """The profile is complete, and the program may end. No Exception, so that a program's own handlers let it pass."""


class Conductor:
    """Hears where steps end. `profile` is None until all was measured, or the program ended after some timed steps."""

    def __init__(
        self,
        schedule: Schedule,
        name: str,
        profile_of: Callable[[Measurements, bool], Profile],
        tell: Tell = quietly,
        to_the_end: bool = False,
    ) -> None:
        """`profile_of(measured, together)` is asked while the program still runs if all went well, at the same step as
        in other processes of its job (`together`); else when it has ended."""
        self.schedule, self.name, self.tell, self.to_the_end = schedule, name, tell, to_the_end
        self.waiting = Waiting()
        self.profile: Profile | None = None
        self._profile_of = profile_of
        self.measured: Measurements | None = None
        self.roots = ScriptRoots()
        self.complete = False  # nothing more is to be measured
        self.failure: Exception | None = None  # of autofuse's own, for whoever runs the program to raise
        self.heard = 0
        self._phases: Generator[None, None, None] | None = None

    def ended(self) -> None:
        """A step is over. Raises Finished after the last that is needed, and again should the program go on."""
        self.heard += 1
        if self.complete:
            return self._finish()
        self._phases = self._phases or self._steps()  # the first step, which sets things up, is no step to look at
        try:
            self.complete = next(self._phases, self) is self
        except Exception as error:  # ours, and none of the program's
            self.complete, self.failure = True, error
        if self.complete:
            self._finish()

    def anew(self) -> None:
        """What was taken for steps was something else: what was measured goes, and all starts again."""
        if not self.complete:
            self._leave()
            self._phases, self.measured, self.roots = None, None, ScriptRoots()

    def close(self) -> None:
        """The program has ended. An instrument that is on goes off; what was measured by then becomes a profile."""
        self._leave()
        if self.measured is not None and len(self.measured.seconds) > 1 and not self.complete:
            self.measured.notes.append("The program ended before all was measured.")
            self.profile = self._profile_of(self.measured, False)

    def _leave(self) -> None:
        if self._phases is not None:
            self._phases.close()

    def _finish(self) -> None:
        if not self.to_the_end:
            raise Finished

    def _steps(self) -> Generator[None, None, None]:
        """Each yield is a step of the program."""
        for _ in self.tell("warmup", range(self.schedule.warmup - 1), self.schedule.warmup - 1):
            yield
        with self.roots.watching():
            yield
        self.measured = self._known()
        yield from self._timed(self.measured)
        yield from self._recorded(self.measured)
        yield from self._counted(self.measured)
        yield from self._held(self.measured)
        yield from self._metered(self.measured)
        self._read(self.measured)
        self.profile = self._profile_of(self.measured, True)

    def _known(self) -> Measurements:
        self.roots.let_go()
        models = self.roots.models
        given = tuple(tensors_in(tuple(self.roots.calls.values())))
        devices = [device_of(model, given) for model in (*models.values(), nn.Identity())]
        device = next((found for found in devices if found.type != "cpu"), torch.device("cpu"))
        return Measurements(self.name, "script", device, ModuleNames(models), probe=Probe(reason=_NO_PROBE))

    def _timed(self, measured: Measurements) -> Iterator[None]:
        device, waited = measured.device, list[WaitingTimes]()
        stick = yardstick(device)
        began = time.perf_counter()
        for done in self.tell("timing", range(self.schedule.timed), self.schedule.timed):
            if done >= FEWEST and time.perf_counter() - began > LONGEST and this_rank() is None:
                measured.notes.append(f"{done} steps were timed: they took {LONGEST:.0f} seconds.")
                break
            synchronize(device)
            self.waiting.take()
            start = time.perf_counter()
            with measured.cores.watched():
                yield
                synchronize(device)
            measured.seconds.append(time.perf_counter() - start)
            waited.append(self.waiting.take())
            if not self.waiting.prefetching:  # a pause would be time for others to fetch data in
                measured.yardstick.append(stick())
            measured.shares = shares(waited, measured.seconds, self.waiting, device)
            measured.rest = rest_of(waited, measured.seconds, measured.shares)
            batch = self._batch(waited)
            measured.samples, measured.tokens = batch.samples, batch.tokens
        if len(measured.yardstick) != len(measured.seconds):
            measured.yardstick.clear()

    def _batch(self, waited: list[WaitingTimes]) -> Batch:
        """What the data loader gave in a step; else what the model was called with, once for each backward pass."""
        batch = batch_of_calls(call for model, call in self.roots.calls.items() if has_parameters(model))
        loaded = [w.samples for w in waited]
        if batch.samples and all(n is not None for n in loaded) and any(loaded):
            samples = round(sum(n or 0 for n in loaded) / len(loaded))
            tokens = None if batch.tokens is None else round(batch.tokens / batch.samples * samples)
            batch = Batch(samples, tokens, "what torch's DataLoader gave in a step")
        elif len(self.roots.optimizers) == 1 and not self.waiting.closures:  # LBFGS looks at one batch many times
            batch = batch.times(max(1, self.roots.backwards))
        return batch.given(self.schedule.samples, self.schedule.tokens)

    def _recorded(self, measured: Measurements) -> Iterator[None]:
        with self._under(measured, "recording", lambda: Recording(measured.names, measured.device)) as recording:
            yield  # recorded and not looked at: the recorder's own first calls are slow
            count = steps_to_record(self.schedule.traced, measured.seconds)
            for _ in self.tell("recording", range(count), count):
                for one in recording:
                    one.next_step()
                with measured.cores.watched():
                    yield
        for one in recording:
            measured.trace, measured.save, measured.cost = one.trace, one.save, one.cost

    def _counted(self, measured: Measurements) -> Iterator[None]:
        with self._under(measured, "counting", lambda: Counting(measured.names)) as counting:
            yield
        for one in counting:
            measured.flops, measured.own = one.flops, one.works(roofs(measured.device))
        models = measured.names.models.values()
        if not is_rewritten(models):
            return
        name = "counting the original"
        with as_written(models), self._under(measured, name, lambda: Counting(measured.names)) as counting:
            yield
        for one in counting:
            measured.flops = measured.flops.asked_by(one.flops)

    def _held(self, measured: Measurements) -> Iterator[None]:
        def holding_all() -> PeakHoldings:
            return PeakHoldings(measured.names, self.roots.optimizers, measured.device, list(self.roots.calls.values()))

        with self._under(measured, "memory", holding_all) as holding:
            yield
        for one in holding:
            measured.memory, measured.held = one.memory, one.by_layer

    def _metered(self, measured: Measurements) -> Iterator[None]:
        """Power and hardware counters, over bare steps that last long enough for both to be read several times."""
        if measured.device.type != "cuda":
            kind = measured.device.type
            measured.power = Power(reason=f"it is read from NVIDIA GPUs (NVML), and the steps ran on {kind}")
            return
        uuid = str(torch.cuda.get_device_properties(measured.device).uuid)
        alone = this_rank() is None  # ranks go through the same steps
        steps = max(1, round(METERED / median(measured.seconds))) if alone else self.schedule.timed
        with self._under(measured, "counters", lambda: Counters(uuid)) as counters:
            synchronize(measured.device)
            with self._under(measured, "power", lambda: metered(uuid)) as meters:
                for _ in self.tell("power", range(steps), steps):
                    yield
                synchronize(measured.device)
        for counter in counters:
            measured.counters = counter.levels()
        for meter in meters:
            measured.power = meter.power(steps, measured.tokens)

    def _read(self, measured: Measurements) -> None:
        """Which rules apply in the models, as they were called in the step that was looked at."""
        for _ in self.tell("reading the model", range(1), 0):
            try:
                measured.readings = readings(self.roots.called(measured.names), self.roots.calls)
            except Exception as error:
                measured.notes.append(f"The model could not be read for rules: {type(error).__name__}: {error}")
        measured.notes += [note for reading in measured.readings for note in reading.notes]

    @contextmanager
    def _under(
        self, measured: Measurements, what: str, make: Callable[[], AbstractContextManager[_Instrument]]
    ) -> Iterator[list[_Instrument]]:
        """An instrument in the block, alone in a list. A failure is told in a note, not to the program, and it leaves
        the list."""
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
