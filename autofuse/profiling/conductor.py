"""Takes a running program's steps through a profile: which are timed, and which run under which instrument.

Knows the instruments' order; must not know where steps end (boundaries.py) or what the program is (program.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from autofuse.measure.compare import device_of
from autofuse.measure.step import tensors_in
from autofuse.measure.timing import synchronize
from autofuse.profiling.batch import Batch, batch_of_calls
from autofuse.profiling.calls import Names
from autofuse.profiling.counting import Counting
from autofuse.profiling.measured import Measured
from autofuse.profiling.owners import ScriptRoots
from autofuse.profiling.waiting import Waited, Waiting, shares
from autofuse.profiling.yardstick import yardstick
from autofuse.report.progress import Tell

_Instrument = TypeVar("_Instrument", bound=AbstractContextManager[Any])


@dataclass(frozen=True)
class Schedule:
    """How many steps of each kind. samples, tokens: of one step, by somebody who knows."""

    warmup: int = 5
    timed: int = 20
    traced: int = 3
    samples: int | None = None
    tokens: int | None = None

    @property
    def steps(self) -> int:
        """Of a whole profile: the first one, which sets things up, and those for counting and for memory."""
        return 1 + max(1, self.warmup) + self.timed + self.traced + 2


class Finished(BaseException):
    """The profile is complete, and the program may end. No Exception, so that a program's own handlers let it pass."""


class Conductor:
    """Hears where steps end. `measured` is None until it is known what the steps run."""

    def __init__(self, schedule: Schedule, name: str, trace: Path, tell: Tell, to_the_end: bool = False) -> None:
        self.schedule, self.name, self.trace, self.tell = schedule, name, trace, tell
        self.to_the_end = to_the_end
        self.waiting = Waiting()
        self.measured: Measured | None = None
        self.roots = ScriptRoots()
        self.complete = False
        self.heard = 0
        self._phases: Iterator[None] | None = None

    def ended(self) -> None:
        """A step is over. Raises Finished after the last that is needed, and again should the program go on."""
        self.heard += 1
        if self.complete:
            return self._finish()
        self._phases = self._phases or self._steps()  # the first step, which sets things up, is no step to look at
        if next(self._phases, self) is self:
            self.complete = True
            self._finish()

    def anew(self) -> None:
        """What was taken for steps was something else: what was measured goes, and all starts again."""
        if not self.complete:
            self.close()
            self._phases, self.measured, self.roots = None, None, ScriptRoots()

    def close(self) -> None:
        """The program has ended. An instrument that is on goes off."""
        if self._phases is not None:
            self._phases.close()  # type: ignore[attr-defined]

    def _finish(self) -> None:
        if not self.to_the_end:
            raise Finished

    def _steps(self) -> Iterator[None]:
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

    def _known(self) -> Measured:
        self.roots.let_go()
        models = self.roots.models
        given = tuple(tensors_in(tuple(self.roots.calls.values())))
        devices = [device_of(model, given) for model in (*models.values(), nn.Identity())]
        device = next((found for found in devices if found.type != "cpu"), torch.device("cpu"))
        return Measured(self.name, "script", device, Names(models))

    def _timed(self, measured: Measured) -> Iterator[None]:
        device, waited = measured.device, list[Waited]()
        stick = yardstick(device)
        for _ in self.tell("timing", range(self.schedule.timed), self.schedule.timed):
            synchronize(device)
            self.waiting.take()
            start = time.perf_counter()
            yield
            synchronize(device)
            measured.seconds.append(time.perf_counter() - start)
            waited.append(self.waiting.take())
            if not self.waiting.prefetching:  # a pause would be time for others to fetch data in
                measured.yardstick.append(stick())
            measured.shares = shares(waited, measured.seconds, self.waiting, device)
            batch = self._batch(waited)
            measured.samples, measured.tokens = batch.samples, batch.tokens
        if len(measured.yardstick) != len(measured.seconds):
            measured.yardstick.clear()

    def _batch(self, waited: list[Waited]) -> Batch:
        """What the data loader gave in a step; else what the model was called with, once for each backward pass."""
        batch = batch_of_calls(
            call for model, call in self.roots.calls.items() if any(True for _ in model.parameters())
        )
        loaded = [w.samples for w in waited]
        if batch.samples and all(n is not None for n in loaded) and any(loaded):
            samples = round(sum(n or 0 for n in loaded) / len(loaded))
            tokens = None if batch.tokens is None else round(batch.tokens / batch.samples * samples)
            batch = Batch(samples, tokens, "what torch's DataLoader gave in a step")
        elif len(self.roots.optimizers) == 1 and not self.waiting.closures:  # LBFGS looks at one batch many times
            batch = batch.times(max(1, self.roots.backwards))
        return batch.given(self.schedule.samples, self.schedule.tokens)

    def _recorded(self, measured: Measured) -> Iterator[None]:
        return
        yield

    def _counted(self, measured: Measured) -> Iterator[None]:
        with self._under(measured, "counting", lambda: Counting(measured.names)) as counting:
            yield
        if counting:
            measured.flops = counting[0].flops
            measured.own = counting[0].works()

    def _held(self, measured: Measured) -> Iterator[None]:
        return
        yield

    @contextmanager
    def _under(self, measured: Measured, what: str, make: Callable[[], _Instrument]) -> Iterator[list[_Instrument]]:
        """An instrument in the block. One that fails is told in a note, and not to the program; the list is empty."""
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
